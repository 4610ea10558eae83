"""Weights that are no plain tensors: those of other classes (wrappers, sparse, nested), packed in C++, or offloaded.

A pass needs fresh copies of the objects of packed weights. accelerate's ``cpu_offload``, ``disk_offload`` and
``dispatch_model`` leave parameters on meta: an ``AlignDevicesHook`` loads them from its ``weights_map`` before a
forward and puts meta tensors back afterwards (accelerate/hooks.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import compat
from .fakes import CPU, OF_FAKES, Fake, UnfakeableError, dress
from .isolation import no_collection
from .structures import CLASSES, all_tensors, inner_names, inner_tensors, is_wrapper, own_attributes, slot_values

_NESTED = ("values", "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")


def stored(tensor: Tensor) -> list[Tensor]:
    """Return the strided tensors that hold a tensor's elements: itself or its parts; none if torch hides them.

    >>> [tuple(part.shape) for part in stored(torch.eye(3).to_sparse())]
    [(3,), (2, 3)]
    """
    if not isinstance(tensor, Fake):
        if compat.is_functorch_wrapped(tensor):
            return stored(compat.functorch_unwrapped(tensor))
        if type(tensor) in CLASSES and tensor.layout is torch.strided and not tensor.is_nested:
            return [tensor]
        inner = inner_tensors(tensor)
        if inner:
            return all_stored(inner)
        if tensor.is_nested:
            with compat.no_modes():
                return [getattr(tensor, name)() for name in _NESTED]
        if tensor.layout is not torch.strided:
            return []
    if type(tensor) in CLASSES or compat.is_torch_fake(tensor):
        return [tensor]
    attributes = {name: value for name, value in vars(tensor).items() if name not in OF_FAKES}
    return [tensor, *all_stored(all_tensors(attributes))]  # Such as the scales of packed weights.


def is_transformed(tensor: object) -> bool:
    """Whether the value is a tensor under a ``torch.func`` transform."""
    return isinstance(tensor, Tensor) and bool(compat.is_functorch_wrapped(tensor))


def all_stored(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the strided tensors that hold the elements of several tensors, in order."""
    return [part for tensor in tensors for part in stored(tensor)]


Change = Callable[[Tensor], Tensor]


def remade(tensor: Tensor, change: Change) -> Tensor:
    """Apply ``change`` to a tensor, keeping its class and attributes; of a wrapper, every inner tensor is changed.

    Operators on the new wrapper run its own class's code on the changed parts.
    """
    if is_wrapper(tensor):
        wrapper: Tensor = _wrapper(tensor, lambda inner: remade(inner, change))
        return wrapper
    changed = change(tensor)
    return tensor if changed is tensor else dress(changed, type(tensor), vars(tensor))


def _wrapper(tensor: Any, change: Change) -> Any:
    originals = {name: getattr(tensor, name) for name in inner_names(tensor)}
    inner = {name: change(part) for name, part in originals.items()}
    if all(inner[name] is part for name, part in originals.items()):
        return tensor
    if type(tensor).__module__.startswith("torch.distributed") and any(isinstance(t, Fake) for t in inner.values()):
        raise UnfakeableError(f"no fake tensor can represent a {tensor.layout} tensor of class {type(tensor).__name__}")
    with torch.no_grad():
        if hasattr(tensor, "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()
            parts = {name: inner[name] if name in inner else getattr(tensor, name) for name in names}
            wrapper = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
        else:
            wrapper = _by_attributes(tensor, inner)
    for name, value in vars(tensor).items():
        if name not in vars(wrapper):
            setattr(wrapper, name, value)
    if isinstance(tensor, nn.Parameter):
        wrapper._is_param = True
    return wrapper if wrapper.requires_grad == tensor.requires_grad else wrapper.requires_grad_(tensor.requires_grad)


def _by_attributes(tensor: Any, inner: dict[str, Tensor]) -> Any:
    """Rebuild a wrapper that has no ``__tensor_unflatten__``, with its attributes and the changed tensors."""
    wrapper = torch.Tensor._make_wrapper_subclass(
        type(tensor),
        tensor.size(),
        strides=tensor.stride(),
        storage_offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        layout=tensor.layout,
        device=next(iter(inner.values())).device,
    )
    for name, value in {**slot_values(tensor), **vars(tensor), **inner}.items():
        setattr(wrapper, name, value)
    return wrapper


HOOK = "_hf_hook"
"""The attribute in which accelerate keeps a module's hook."""


def offloading(module: nn.Module) -> Any:
    """Return the hook that offloads a module's weights, or None."""
    waiting = [vars(module)[HOOK]] if HOOK in vars(module) else []
    while waiting:
        hook = waiting.pop()
        if getattr(hook, "offload", False) and isinstance(getattr(hook, "weights_map", None), Mapping):
            return hook
        waiting.extend(getattr(hook, "hooks", ()))
    return None


def execution_device(modules: Sequence[nn.Module]) -> torch.device | None:
    """Return the device on which the first offloaded module runs; None if no module is offloaded."""
    for module in modules:
        device = getattr(offloading(module), "execution_device", None)
        if device is not None:
            return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return None


def is_complete(modules: Sequence[nn.Module]) -> bool:
    """Whether every parameter and buffer has values, at least during a forward."""
    fetched = {id(tensor) for module in modules for tensor in absent(module)}
    own = [t for m in modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    return all(tensor.device.type != "meta" or id(tensor) in fetched for tensor in own)


def absent(module: nn.Module) -> list[Tensor]:
    """Return the meta parameters and buffers whose weights the module's hook can load."""
    if offloading(module) is None:
        return []
    return [tensor for tensor in _named_tensors(module).values() if tensor.device.type == "meta"]


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class Away(NamedTuple):
    """How a pass replaces offloaded weights: those in memory by ``weight``'s results.

    With a ``device``, a pass on fakes, modules run there, and weights on disk are allocated without being read.
    """

    weight: Change
    device: torch.device | None = None


class Offloaded(dict[str, Tensor]):
    """A weights map of replacements for the weights in memory; ``load`` provides those on disk."""

    load: Callable[[str], Tensor]

    def __missing__(self, name: str) -> Tensor:
        return self.load(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a weight, also one on disk, as where a hook is removed."""
        return self[name]


def swap_offloaded(module: nn.Module, away: Away) -> None:
    """Have the hook of a module's copy find its weights' replacements."""
    hook = offloading(module)
    if hook is None:
        return
    weights, specs = hook.weights_map, _named_tensors(module)
    known = {name: _in_memory(weights, name) for name in specs}
    hook.weights_map = Offloaded((name, away.weight(tensor)) for name, tensor in known.items() if tensor is not None)
    hook.weights_map.load = weights.__getitem__
    if away.device is not None:
        hook.execution_device = away.device
        hook.weights_map.load = lambda name: torch.empty(specs[name].shape, dtype=specs[name].dtype, device=CPU)


def _in_memory(weights: Any, name: str) -> Tensor | None:
    """Return a weight if the map has it in memory: accelerate's ``PrefixedDataset`` or ``OffloadedWeightsLoader``."""
    while hasattr(weights, "dataset") and hasattr(weights, "prefix"):
        weights, name = weights.dataset, f"{weights.prefix}{name}"
    state = getattr(weights, "state_dict", weights)
    value = state.get(name) if isinstance(state, dict) else None
    return value if isinstance(value, Tensor) else None


def offloaded(module: nn.Module) -> list[Tensor]:
    """Return the replacements of a module's offloaded weights in memory."""
    weights = getattr(offloading(module), "weights_map", None)
    return list(weights.values()) if isinstance(weights, Offloaded) else []


def packed_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the packed weights and biases of a quantized module, which ``parameters()`` does not list."""
    for name, value in _packed(module):
        for position, tensor in enumerate(unpacked(value)):
            yield f"{name}.{position}", tensor


def _packed(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in _scripted(module).items() or own_attributes(module):
        if issubclass(type(value), torch.ScriptObject) and not isinstance(value, compat.ScriptModule):
            yield name, value


def held_by_script(module: nn.Module) -> list[Tensor]:
    """Return the tensors that a scripted module holds itself in C++, other than constants and packed weights."""
    return all_tensors([*_scripted(module).values()])


def _scripted(module: nn.Module) -> dict[str, Any]:
    """Return a scripted module's attributes; a frozen one has none, because its weights are constants of its graph."""
    if not isinstance(module, torch.jit.ScriptModule):
        return {}
    script: Any = module
    kind = getattr(script, "_concrete_type", None)
    return {} if kind is None else {name: script._c.getattr(name) for name in kind.get_attributes()}


def graph_constants(module: nn.Module) -> list[Tensor]:
    """Return the constant tensors in a scripted module's graphs, such as all weights of a frozen one."""
    graphs = [method.graph for method in _methods(module)]
    values = [node.output().toIValue() for graph in graphs for node in graph.findAllNodes("prim::Constant")]
    of_onednn = [node.t("value") for graph in graphs for node in graph.findAllNodes("prim::ConstantMKLDNNTensor")]
    return all_tensors([*values, *of_onednn])


def calls_in_script(module: nn.Module, operator: str) -> bool:
    """Whether a scripted module calls an operator, such as "aten::linear", itself or in a submodule."""
    return any(method.inlined_graph.findNode(operator) is not None for method in _methods(module))


def _methods(module: nn.Module) -> list[Any]:
    """Return a scripted module's methods; none of another module."""
    if not isinstance(module, torch.jit.ScriptModule):
        return []
    return [compat.script_method(module._c, name) for name in compat.script_methods(module._c)]


def unpacked(state: Any) -> Iterator[Tensor]:
    """Yield the tensors that a packed object unpacks to, and those of the objects within it."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, torch.ScriptObject):
        yield from unpacked(opened(state))
    elif isinstance(state, (list, tuple)):
        for item in state:
            yield from unpacked(item)


def opened(packed: Any) -> Any:
    """Return what a packed object unpacks to, or None if its library cannot, as QNNPACK for volumes."""
    unpack = getattr(packed, "unpack", None) or getattr(packed, "__getstate__")  # noqa: B009 (typeshed knows neither)
    try:
        return unpack()
    except RuntimeError:
        return None


def repacked(state: Any) -> Any:
    """Return a packed object, or a state that contains some, packed afresh as before its first call.

    In its first call an object packs its weights once more (QNNPACK) or adds its kernel's buffers (oneDNN). An object
    that cannot be pickled is returned itself.
    """
    if isinstance(state, torch.ScriptObject):
        packed: Any = state
        if not packed._has_method("__getstate__"):
            return packed
        new: Any = torch.ScriptObject.__new__(type(packed))
        try:
            new.__setstate__(repacked(packed.__getstate__()))
        except RuntimeError:  # The current engine cannot unpack it, as QNNPACK cannot unpack a 3-d convolution.
            return packed
        return new
    return type(state)(map(repacked, state)) if isinstance(state, (list, tuple)) else state


def repack(modules: Iterable[nn.Module]) -> None:
    """Give copies of modules fresh copies of their packed objects, so that the originals do not change.

    Scripted modules keep theirs.
    """
    copies: dict[int, Any] = {}
    with compat.no_modes(), compat.no_function(), torch.no_grad():
        for module in modules:
            for name, value in [] if isinstance(module, torch.jit.ScriptModule) else [*_packed(module)]:
                if id(value) not in copies:
                    copies[id(value)] = repacked(value)
                vars(module)[name] = copies[id(value)]


_BY_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
"""Ways of quantizing with a scale and a zero point of each channel."""


def packed_blocks(modules: Iterable[nn.Module]) -> tuple[list[tuple[int, int]], int, int]:
    """Return the bytes of each block that packed objects hold, with the module's number, and the bytes held elsewhere.

    The last is the number of objects that do not unpack. A library such as FBGEMM packs weights into its own memory. Of
    torch's memory an object holds the storages that it returns at every call, but for C++ vectors, and those that a
    copy of it allocates. Optimized models hold oneDNN's tensors.
    """
    modules = list(modules)
    constants = [(constant, index) for index, module in enumerate(modules) for constant in graph_constants(module)]
    objects = [(packed, index) for index, module in enumerate(modules) for _, packed in _packed(module)]
    if not objects and not constants:
        return [], 0, 0
    with compat.no_modes(), compat.no_function():
        blocks = [(compat.onednn_bytes(constant), index) for constant, index in constants if constant.is_mkldnn]
        held = sum(nbytes for nbytes, _ in blocks)
        unreadable = sum(opened(packed) is None for packed, _ in objects)
        for packed, index in objects:
            tensors, again = list(unpacked(packed)), unpacked(packed)
            held += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            first, same = ({storage.data_ptr(): storage for storage in _storages(part)} for part in (tensors, again))
            own = (storage.nbytes() for at, storage in same.items() if at in first and storage.resizable())
            blocks += [(nbytes, index) for nbytes in (*filter(None, own), *_copy_bytes(packed))]
    return blocks, max(0, held - sum(nbytes for nbytes, _ in blocks)), unreadable


def _storages(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    """Yield the tensors' storages, also those of scales and zero points by channel."""
    for tensor in tensors:
        yield tensor.untyped_storage()
        if tensor.is_quantized and tensor.qscheme() in _BY_CHANNEL:
            yield tensor.q_per_channel_scales().untyped_storage()
            yield tensor.q_per_channel_zero_points().untyped_storage()


def _copy_bytes(packed: Any) -> list[int]:
    """Return the bytes of the blocks that a copy of the object holds; none while another profile runs."""
    if compat.profiler_enabled():
        return []
    with torch.no_grad(), no_collection(), compat.block_sizes() as sizes:
        copy = repacked(packed)
    del copy
    return [*(Counter(size for size in sizes if size > 0) - Counter(-size for size in sizes if size < 0)).elements()]
