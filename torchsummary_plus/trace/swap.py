"""Swap a model's tensors for a pass, and restore every attribute afterwards."""

from __future__ import annotations

import random
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ..live import compat
from ..live.fakes import Fake
from ..live.offloading import AS_THEY_ARE, Away, absent, swap_offloaded
from ..live.structures import is_wrapper, slot_names
from .kernels import SMALL

_LOCK = threading.RLock()


@contextmanager
def one_pass() -> Iterator[None]:
    """Serialise passes, because a pass writes to modules' attributes, and suspend a caller's ``FakeTensorMode``."""
    with _LOCK, compat.outside_fake_mode():
        yield


_MUTABLE = (dict, list, set, deque, bytearray)
_PLAIN = frozenset({dict, OrderedDict, list, set})
_DEEPEST = 4

Swap = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def restored(modules: Sequence[nn.Module], others: Sequence[Any] = (), alone: Sequence[Any] = ()) -> Iterator[None]:
    """Restore attributes of modules and ``others``, and RNG states, on exit, even after an exception.

    Containers and objects in ``alone`` are restored too, but not the objects inside them.

    Attribute dictionaries regain their entries in order; lists, dicts, sets and objects in them (hooks, buffers, a
    user's own caches) regain their contents and remain the same objects.
    """
    memory = _Memory()
    for module in modules:
        memory.keep(vars(module))
    for other in others:
        memory.keep(vars(other))
    for value in alone:
        memory.keep_alone(value)
    scripted = [module for module in modules if isinstance(module, torch.jit.ScriptModule)]
    modes = [(module, module.training) for module in scripted if hasattr(module, "training")]  # Frozen ones have none.
    slots = [(module, name, tensor) for module in scripted for name, tensor in _slots(module)]
    generators = resets()
    try:
        yield
    finally:
        memory.put_back()
        for module, training in modes:
            module.training = training
        for module, name, tensor in slots:
            module._c.setattr(name, tensor)
        for put_back in generators:
            put_back()


class _Memory:
    """The original contents of mutable containers, including nested ones."""

    def __init__(self) -> None:
        self.empty: list[Any] = []
        self.full: list[tuple[Any, list[Any]]] = []
        self.slots: list[tuple[Any, list[tuple[str, Any]]]] = []
        self.generators: list[Callable[[], object]] = []
        self.seen: set[int] = set()

    def keep(self, container: Any, depth: int = 0) -> None:
        """Save a container and everything in it."""
        if not container:
            self.empty.append(container)
            return
        is_dict = isinstance(container, dict)
        self.full.append((container, list(container.items()) if is_dict else list(container)))
        if depth <= _DEEPEST:
            for value in container.values() if is_dict else container:
                kind = value.__class__
                if kind in _PLAIN and not value:
                    self.empty.append(value)
                elif kind not in INERT:
                    self._keep_inside(value, depth + 1)

    def keep_alone(self, value: Any) -> None:
        """Save a container or object without its nested containers."""
        self._keep_inside(value, _DEEPEST + 1)

    def _keep_inside(self, value: Any, depth: int) -> None:
        if isinstance(value, _MUTABLE):
            if id(value) not in self.seen:
                self.seen.add(id(value))
                self.keep(value, depth)
        elif isinstance(value, tuple):
            for item in value:
                if item.__class__ not in INERT:
                    self._keep_inside(item, depth + 1)
        elif isinstance(value, torch.Tensor):
            self.keep(value.__dict__, depth)
        elif not isinstance(value, _OPAQUE) and id(value) not in self.seen:
            self.seen.add(id(value))
            turned_back = _turning_back(value)
            if turned_back is not None:
                self.generators.append(turned_back)
                return
            names = [name for name in slot_names(value) if not isinstance(getattr(type(value), name, None), property)]
            slots = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
            if slots:
                self.slots.append((value, slots))
                self._keep_inside(tuple(content for _, content in slots), depth)
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                self.keep(attributes, depth)

    def put_back(self) -> None:
        """Restore every container, writing only where it differs."""
        for container in self.empty:
            if container:
                container.clear()
        for container, content in self.full:
            refill(container, content)
        for turn_back in self.generators:
            turn_back()
        for holder, slots in self.slots:
            for name, value in slots:
                if getattr(holder, name, None) is not value:
                    object.__setattr__(holder, name, value)
        for kept in (self.empty, self.full, self.generators, self.slots):
            kept.clear()  # An exception may keep this object alive, which would count as a holder.


INERT = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
_OPAQUE = (nn.Module, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, weakref.ref, torch.ScriptObject)
"""Values that are not saved inside. Of tensors, only the attributes are saved."""


def _turning_back(value: Any) -> Callable[[], object] | None:
    """Return a function that resets a random generator or array to its current state; None for other values."""
    if isinstance(value, torch.Generator):
        tensor = value.get_state()
        return lambda: value.set_state(tensor)
    if isinstance(value, random.Random):
        state = value.getstate()
        return lambda: value.setstate(state)
    module = type(value).__module__
    if module == "numpy" and hasattr(value, "copy") and hasattr(value, "flags"):
        content = value.copy()
        return lambda: value.__setitem__(..., content) if value.flags.writeable else None
    if not module.startswith("numpy.random"):
        return None
    bits = getattr(value, "bit_generator", None)
    if bits is None:
        state = value.get_state()
        return lambda: value.set_state(state)
    state = bits.state
    return lambda: setattr(bits, "state", state)


def refill(container: Any, content: list[Any]) -> None:
    """Restore a container's contents (a dict's items) unless they are unchanged."""
    if isinstance(container, dict):
        if len(container) == len(content):
            for (key, value), now in zip(content, container.items()):
                if now[0] is not key or now[1] is not value:
                    break
            else:
                return
        container.clear()
        for key, value in content:
            container[key] = value
    elif isinstance(container, set):
        if container != set(content):
            container.clear()
            container.update(content)
    elif len(container) != len(content) or any(a is not b for a, b in zip(container, content)):
        container.clear()
        container.extend(content)


def resets() -> list[Callable[[], object]]:
    """Return functions that reset global state a forward may change, above all random generators."""
    cpu, own, dtype = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    back: list[Callable[[], object]] = [
        lambda: torch.set_rng_state(cpu),
        lambda: random.setstate(own),
        lambda: torch.set_default_dtype(dtype),
    ]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state()
        back.append(lambda: numpy_random.set_state(state))
    if torch.cuda.is_initialized():
        cuda = torch.cuda.get_rng_state_all()
        back.append(lambda: torch.cuda.set_rng_state_all(cuda))
    return back


def swap_tensors(
    modules: Sequence[nn.Module], parameter: Swap, other: Swap, away: Away = AS_THEY_ARE
) -> dict[int, torch.Tensor]:
    """Swap every parameter for ``parameter(p)``, every buffer and tensor attribute for ``other(t)``.

    Offloaded weights follow ``away``. A tensor held in several places gets one replacement; the replacements are
    returned by the ids of their originals. Call it inside :func:`restored`, which undoes it.
    """
    stand_ins: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        replacement = stand_ins.get(id(tensor))
        if replacement is None:
            if not is_wrapper(tensor) and not isinstance(tensor, Fake):  # A fake's known values stay real.
                swap_inside(vars(tensor), stand_in)
            change = parameter if isinstance(tensor, nn.Parameter) else other
            replacement = stand_ins[id(tensor)] = change(tensor)
        return replacement

    def small_or_stand_in(tensor: torch.Tensor) -> torch.Tensor:
        return stand_in(tensor) if id(tensor) in stand_ins or tensor.numel() > SMALL else tensor

    for module in modules:
        stand_ins.update({id(tensor): away.missing(tensor) for tensor in absent(module)})
        swap_offloaded(module, away)
    for module in modules:
        attributes = vars(module)
        if isinstance(module, torch.jit.ScriptModule):
            for name, tensor in _slots(module):
                module._c.setattr(name, stand_in(tensor))
        for tensors in (attributes.get("_parameters"), attributes.get("_buffers")):
            if isinstance(tensors, dict):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = stand_in(tensor)
        for name, value in attributes.items():
            if isinstance(value, torch.Tensor):
                attributes[name] = stand_in(value)
            elif type(value) in (list, dict) and value and name not in MODULE_DICTS:
                swap_inside(value, stand_in)
    for module in modules:
        for name, value in vars(module).items():
            if name not in MODULE_DICTS and name != "_hf_hook":
                _swap_inside_object(value, small_or_stand_in)
    replacements = dict(stand_ins)
    stand_ins.clear()  # These functions refer to each other and would keep it alive until garbage collection.
    return replacements


def _slots(module: torch.jit.ScriptModule) -> list[tuple[str, torch.Tensor]]:
    """Return a scripted module's parameters and buffers by name; they are in C++, outside its dictionaries."""
    named = (*module._parameters.items(), *module._buffers.items())
    return [(name, tensor) for name, tensor in named if tensor is not None]


MODULE_DICTS = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))


def swap_inside(container: Any, stand_in: Swap, depth: int = 0) -> None:
    """Swap the tensors in a list or dict, and an RNN's weak references to its weights."""
    for key, value in container.items() if isinstance(container, dict) else enumerate(container):
        if isinstance(value, torch.Tensor):
            container[key] = stand_in(value)
        elif isinstance(value, weakref.ref):
            tensor = value()
            if isinstance(tensor, torch.Tensor):
                container[key] = weakref.ref(stand_in(tensor))
        elif type(value) in (list, dict) and depth < _DEEPEST:
            swap_inside(value, stand_in, depth + 1)
        else:
            _swap_inside_object(value, stand_in, depth + 1)


def _swap_inside_object(value: Any, stand_in: Swap, depth: int = 0) -> None:
    """Swap the tensors inside a user-defined object, such as the state of a quantised weight."""
    kind = value.__class__
    if depth >= _DEEPEST or kind in INERT or kind in _PLAIN or isinstance(value, (*_OPAQUE, torch.Tensor)):
        return
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict and attributes and not callable(value):
        swap_inside(attributes, stand_in, depth)
