"""nn.Module -> ModuleSpecs: the module tree, with parameters and buffers identified by tensor and by storage."""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import isfinite, prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import ScriptObject, Tensor, nn, strided
from torch.jit import ScriptModule

from ..data.records import LayerSpec, ModuleSpec, ParameterSpec, Setting
from ..data.units import is_integer
from ..live import compat
from ..live.structures import CLASSES, INERT, dtype_name, held_bytes, logical_shape, own_attributes
from ..live.weights import HOOK, execution_device, packed_parameters, stored

CPU = torch.device("cpu")
_REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
PARTS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList)
"""Modules whose items may be experts, of which a router chooses."""
ADAPTED = ("adapter_layer_names", "peft_config")
"""Attributes of a module with adapters, or of its class."""


class ModuleTree:
    """The distinct modules of a model, each at the first path that leads to it, with their specs.

    From index ``unregistered`` on, modules are held only by plain lists, dicts and the like, or in the ``__dict__``.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        self.index: dict[int, int] = {}
        self.paths: list[str] = []
        self.names: list[str] = []
        self.parents: list[int | None] = []
        self.children: list[list[int]] = []
        self.aliases: dict[int, list[tuple[int, str]]] = {}
        self.own_modes: tuple[str, ...] = ()
        """Modules that kept their mode when the model's was last set, with the reason."""
        self.left_out: tuple[str, ...] = ()
        """What the model's wrappers do and this tree does not."""
        self._released: list[weakref.ref[nn.Module]] = []
        self.called = model
        """What a user's step is given: the model in its wrappers."""
        self._unregistered_parameters: dict[int, list[tuple[str, nn.Parameter]]] = {}
        """By module, the parameters in its attributes that no module registers, with their names."""
        self.attributes: list[list[tuple[str, Any]]] = []
        """By module, the attributes in which it may hold tensors or modules itself, with their names; not of copies."""
        self._walk(model)
        self.unregistered = len(self.modules)
        self._find_unregistered()
        self.is_offloaded = self.has_adapters = self.may_have_experts = False
        self.packed: set[int] = set()
        """The modules that may hold packed weights."""
        self._find_kinds()

    def on(self, modules: list[nn.Module], copy_of: Callable[[Any], Any]) -> ModuleTree:
        """Return the tree of a copy of the model, whose modules have the same numbers."""
        tree = copy.copy(self)
        tree.modules, tree.attributes = modules, []
        tree.index = dict(zip(map(id, modules), count()))
        tree.called = copy_of(self.called)
        return tree

    def release(self) -> None:
        """Hold only the root from now on, so that a step frees the modules that it replaces."""
        self._released = [weakref.ref(module) for module in self.modules]
        self.modules = self.modules[:1]
        self.attributes.clear()

    def clear(self) -> None:
        """Drop all modules, so that they are freed without the garbage collector."""
        self.modules, self.called = [], nn.Module()

    def module(self, index: int) -> nn.Module | None:
        """Return a module by its number; None if it is gone."""
        return self._released[index]() if self._released else self.modules[index]

    def size(self) -> int:
        """Return the number of children currently registered."""
        modules = [known() for known in self._released] if self._released else self.modules
        return sum([len(module._modules) for module in modules if module is not None])

    def _walk(self, model: nn.Module, parent: int | None = None, name: str = "") -> None:
        """Visit registered children in pre-order, without recursion: models may exceed Python's recursion limit."""
        stack: list[tuple[nn.Module, int | None, str]] = [(model, parent, name)]
        while stack:
            module, above, called = stack.pop()
            known = self.index.get(id(module))
            if known is not None:
                if above is not None:
                    self.aliases.setdefault(known, []).append((above, called))
                continue
            index = self.index[id(module)] = len(self.modules)
            self.modules.append(module)
            self.paths.append(self.join(above, called))
            self.names.append(called)
            self.parents.append(above)
            self.children.append([])
            if above is not None:
                self.children[above].append(index)
            for key, child in reversed(module._modules.items()):
                if child is not None:
                    stack.append((child, index, key))

    def moving_order(self) -> list[int]:
        """Return the modules' numbers in the order in which ``model.to(device)`` moves their tensors.

        Children come before their parent (torch/nn/modules/module.py, ``_apply``), and unregistered modules last.
        """
        last_first, waiting = [], [0]
        while waiting:
            last_first.append(index := waiting.pop())
            waiting.extend(child for child in self.children[index] if child < self.unregistered)
        return [*reversed(last_first), *range(self.unregistered, len(self.modules))]

    def join(self, parent: int | None, name: str) -> str:
        """Return the path of the child called ``name`` in module ``parent``."""
        return name if parent is None or not self.paths[parent] else f"{self.paths[parent]}.{name}"

    def _find_unregistered(self) -> None:
        """Find modules and parameters in plain lists and the like: not registered, but a forward may use them."""
        parameters = []
        known: set[int] = set()
        for position, module in enumerate(self.modules):  # Which grows meanwhile.
            known.update(map(id, module._parameters.values()))
            self.attributes.append(own_attributes(module))
            for attribute, value in self.attributes[-1]:
                for name, held in _layers_in(value, attribute):
                    if isinstance(held, nn.Module):
                        if id(held) not in self.index:
                            self._walk(held, position, name)
                    elif isinstance(held, nn.Parameter):
                        parameters.append((position, name, held))
        for position, name, parameter in parameters:
            if id(parameter) not in known:
                known.add(id(parameter))
                self._unregistered_parameters.setdefault(position, []).append((name, parameter))

    def _find_kinds(self) -> None:
        """Ask once what modules may be besides plain layers, so that the table of a plain model never does."""
        self.has_adapters = any(hasattr(kind, name) for kind in set(map(type, self.modules)) for name in ADAPTED)
        for index, (module, attributes) in enumerate(zip(self.modules, self.attributes)):
            kind, own = type(module), vars(module)
            self.is_offloaded = self.is_offloaded or HOOK in own
            self.has_adapters = self.has_adapters or any(name in own for name in ADAPTED)
            values = [value for _, value in attributes if issubclass(type(value), ScriptObject)]
            if values or isinstance(module, ScriptModule):
                self.packed.add(index)
            has_parameters = module._parameters or index in self._unregistered_parameters or index in self.packed
            if isinstance(module, PARTS) or (has_parameters and not kind.__module__.startswith("torch.nn.")):
                self.may_have_experts = True

    def tensors(self) -> Iterator[Tensor]:
        """Yield all parameters, then all buffers, of the registered modules; shared ones repeat."""
        for kind in ("_parameters", "_buffers"):
            for module in self.modules[: self.unregistered]:
                for tensor in getattr(module, kind).values():
                    if tensor is not None:
                        yield tensor

    def device(self) -> torch.device:
        """Return the device of the first parameter or buffer, preferring those on a GPU.

        Without any, or on ``meta``, it is the CPU.
        """
        device = execution_device(self.modules) if self.is_offloaded else None
        if device is None:
            devices = [tensor.device for tensor in self.tensors()] or [CPU]
            device = next((device for device in devices if device.type == "cuda"), devices[0])
        return CPU if device.type == "meta" else device

    def dtype(self) -> torch.dtype:
        """Return the dtype of the first floating-point parameter or buffer, else the real one of the first complex one.

        Without either, it is torch's default.
        """
        for tensor in self.tensors():
            if tensor.dtype in _REAL:
                return tensor.dtype
        own = self.complex_dtype()
        return torch.get_default_dtype() if own is None else own.to_real()

    def complex_dtype(self) -> torch.dtype | None:
        """Return the dtype of the first complex parameter or buffer; None without any."""
        return next((tensor.dtype for tensor in self.tensors() if tensor.dtype.is_complex), None)

    def specs(self) -> tuple[ModuleSpec, ...]:
        """Return one record per module, in the order of ``modules``."""
        keys, specs = _Keys(self.tensors()), []
        for index, module in enumerate(self.modules):
            registered, parameters, buffers = index < self.unregistered, [], []
            base, constants = _declared(type(module))
            sizes, groups = _integers(module, "kernel_size"), _integers(module, "groups")
            for name, p in module._parameters.items():
                if p is not None:
                    is_masked = name == "original" or name.endswith("_orig")
                    pruned = pruned_elements(module, name, p) if is_masked else None
                    parameters.append(keys.spec(name, p, p.requires_grad, pruned))
            if index in self.packed:
                for name, tensor in packed_parameters(module):
                    parameters.append(replace(keys.spec(name, tensor, False), registered=registered))
            layer = layer_spec(module, base, constants, parameters)
            for name, p in self._unregistered_parameters.get(index, ()):
                parameters.append(keys.spec(name, p, p.requires_grad))
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    buffers.append(keys.spec(name, buffer, False))
            spec = ModuleSpec(
                index, self.paths[index], self.names[index], class_name(module), self.parents[index],
                tuple(self.children[index]), tuple(parameters), tuple(buffers),
                sizes, groups[0] if groups and len(groups) == 1 else None,
                isinstance(module, CONTAINERS), registered, layer,
            )  # fmt: skip
            specs.append(spec)
        return tuple(specs)

    def path_from(self, caller: int | None, module: int) -> str:
        """Return the path by which ``caller`` reaches a module: the module's own, or an alias below the caller."""
        if caller is None:
            return self.paths[module]
        prefix = self.paths[caller] + "." if self.paths[caller] else ""
        below = [self.join(parent, name) for parent, name in self.aliases[module]]
        return next((path for path in [self.paths[module], *below] if path.startswith(prefix)), self.paths[module])


_SEQUENCES = (list, tuple, set, frozenset, deque)


def _layers_in(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, nn.Module | Tensor]]:
    """Yield the modules and tensors that an attribute of a module holds, with their paths from that module."""
    kind = type(value)  # Isinstance would follow weak proxies, which may be dead.
    if issubclass(kind, (nn.Module, Tensor)):
        yield path, value
    elif depth < 4 and issubclass(kind, (dict, *_SEQUENCES)):
        for key, item in dict.items(value) if issubclass(kind, dict) else enumerate(value):
            if type(item) not in INERT:
                yield from _layers_in(item, f"{path}.{key}", depth + 1)


class _Keys:
    """Numbers tensors and storages in order of appearance; ``registered`` are the model's own."""

    def __init__(self, registered: Iterable[Tensor]) -> None:
        self.registered = frozenset(map(id, registered))
        self.kept_alive: list[Tensor] = []
        self.tensors: dict[int, int] = {}
        self.storages: dict[Any, int] = {}

    def spec(self, name: str, tensor: Tensor, trainable: bool, pruned: int | None = None) -> ParameterSpec:
        self.kept_alive.append(tensor)
        key = self.tensors.setdefault(id(tensor), len(self.tensors))
        registered, dtype = id(tensor) in self.registered, dtype_name(tensor.dtype)
        storages: dict[int, int] = {}
        is_plain = type(tensor) in CLASSES and tensor.layout is strided and not tensor.is_nested
        if is_plain and not vars(tensor) and not compat.is_functorch_wrapped(tensor):  # As most are.
            shape, parts = tuple(tensor.shape), [tensor]
        elif nn.parameter.is_lazy(tensor):
            return ParameterSpec(name, key, (), dtype, 0, trainable, (), registered)
        else:
            shape, parts = logical_shape(tensor), stored(tensor) or [tensor]
        for part in parts:
            if part.layout is strided and not part.is_nested:
                storage = part.untyped_storage()
                place, nbytes = ("storage", storage._cdata), storage.nbytes()
            else:  # Without a storage, the bytes of its elements.
                self.kept_alive.append(part)
                place, nbytes = ("tensor", id(part)), held_bytes(part)
            storages[self.storages.setdefault(place, len(self.storages))] = nbytes
        return ParameterSpec(
            name, key, shape, dtype, prod(shape), trainable, tuple(storages.items()), registered, pruned
        )


def _integers(module: nn.Module, name: str) -> tuple[int, ...] | None:
    """Return an attribute that is an integer or several, or None."""
    kind = type(module)
    if kind.__getattr__ is nn.Module.__getattr__ and name not in vars(module) and not hasattr(kind, name):
        return None  # As of most modules: ``getattr`` would take far longer.
    value = getattr(module, name, None)
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(map(int, values)) if values and all(map(is_integer, values)) else None


def pruned_elements(module: nn.Module, name: str, parameter: Tensor) -> int | None:
    """Return how many elements of a parameter are masked by ``torch.nn.utils.prune`` or ``torch.ao.pruning``.

    None without a mask, or if the mask has no values.
    """
    if name == "original" and isinstance(module, nn.utils.parametrize.ParametrizationList):
        masks = [child._buffers.get("mask") for child in module._modules.values() if child is not None]
    else:
        masks = [module._buffers.get(f"{name.removesuffix('_orig')}_mask")] if name.endswith("_orig") else []
    for mask in masks:
        if type(mask) is Tensor and not mask.is_meta and mask.shape == parameter.shape:
            with compat.no_modes():
                return mask.numel() - int(mask.count_nonzero())
    return None


def tensors_in(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Return the parameters and buffers that modules hold themselves."""
    held = [tensor for module in modules for tensor in (*module._parameters.values(), *module._buffers.values())]
    return [tensor for tensor in held if tensor is not None]


def class_name(module: nn.Module) -> str:
    """Return a module's own name (``_get_name``), by default its class's; for a scripted module, its source class's."""
    if isinstance(module, ScriptModule):
        return str(module.original_name)
    if type(module)._get_name is nn.Module._get_name:
        return type(module).__name__
    try:
        return str(module._get_name())
    except Exception:  # An exception in a user's class must not hide its row.
        return type(module).__name__


def placed(device: torch.device) -> torch.device:
    """Return the device with its index."""
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


UNDECLARED = {
    "MultiheadAttention": ("embed_dim", "num_heads", "kdim", "vdim", "add_zero_attn"),
    "RNNCellBase": ("num_chunks",),
}
"""Constants of ``torch.nn`` classes that are missing from their ``__constants__``."""

PLAIN = frozenset({bool, int, str, type(None)})
_WHOLE = frozenset({int})


def layer_spec(
    module: nn.Module, base: str, constants: Iterable[str], parameters: Sequence[ParameterSpec]
) -> LayerSpec | None:
    """Return a module's settings and parameters; None for a class unknown to torch without parameters."""
    settings: list[tuple[str, Setting]] = []
    for name in constants:
        value: Any = getattr(module, name, ...)
        if type(value) in PLAIN or (type(value) is float and isfinite(value)):
            settings.append((name, value))
        elif isinstance(value, (tuple, list)) and _WHOLE.issuperset(map(type, value)):
            settings.append((name, tuple(value)))
    known = []
    for p in parameters:
        if not p.is_uninitialised:
            known.append((p.name, p.shape, p.dtype))
    return LayerSpec(base, tuple(settings), tuple(known)) if settings or known else None


_KNOWN: WeakKeyDictionary[type, tuple[str, tuple[str, ...]]] = WeakKeyDictionary()
"""Cache by class, for as long as the class lives."""


def _declared(kind: type[nn.Module]) -> tuple[str, tuple[str, ...]]:
    """Return the nearest class exported by ``torch.nn``, and its constants."""
    if (known := _KNOWN.get(kind)) is not None:
        return known
    bases = [base for base in kind.__mro__ if base.__module__.startswith("torch.nn.") and base is not nn.Module]
    exported = [base.__name__ for base in bases if getattr(nn, base.__name__, None) is base]
    declared = [name for base in bases for name in vars(base).get("__constants__", ())]
    more = [name for base in bases for name in UNDECLARED.get(base.__name__, ())]
    constants = tuple(dict.fromkeys(declared + more)) if exported else ()
    _KNOWN[kind] = exported[0] if exported else "", constants
    return _KNOWN[kind]


_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def unwrapped(model: nn.Module) -> list[nn.Module]:
    """Return a model's wrappers by ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``, and the model.

    A ``DataParallel`` without GPUs only calls its model: one with hooks stays, so that they run.
    """
    found = [model]
    while not (isinstance(model, nn.DataParallel) and not model.device_ids and _has_hooks(model)):
        inside = model.module if isinstance(model, _PARALLEL) else getattr(model, "_orig_mod", None)
        if not isinstance(inside, nn.Module):
            break
        found.append(model := inside)
    return found


def _has_hooks(model: nn.Module) -> bool:
    return any(model.__dict__[hooks] for hooks in _HOOKS)


def hooks_around(wrappers: Iterable[nn.Module]) -> tuple[str, ...]:
    """Return a line for each wrapper around a model that has hooks of its own."""
    names = [type(model).__name__ for model in wrappers if _has_hooks(model)]
    return tuple(
        f"hooks of the {name} around the model do not run; register them on the model inside" for name in names
    )


def wrapped(wrappers: Sequence[nn.Module], called: nn.Module) -> nn.Module:
    """Return a copy of a model's wrappers that calls the module inside: a step may use their names and methods."""
    for model in reversed(wrappers):
        wrapper = object.__new__(type(model))
        vars(wrapper).update(vars(model))
        name = "module" if isinstance(model, _PARALLEL) else "_orig_mod"
        vars(wrapper).update(_modules={**model._modules, name: called}, forward=called)
        called = wrapper
    return called
