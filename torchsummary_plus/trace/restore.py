"""Restore a model, and whatever else a forward or step can reach, after a pass."""

from __future__ import annotations

import array
import io
import os
import queue
import random
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ..live import compat
from ..live.reach import Reached, content_of, emptied, queued
from ..live.structures import behind_proxy, slot_names
from .generator_variables import reset_of_generator
from .user_logs import INERT, LOGS, Additions, Namespace, added_to, holds_tensors, items_of, numbers_watched

_LOCK = threading.RLock()


def _unlock() -> None:
    """Forget the lock in a forked child: a thread that held it exists in the parent alone."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


@contextmanager
def one_pass() -> Iterator[None]:
    """Serialise passes, because a pass writes to modules' attributes, and suspend a caller's ``FakeTensorMode``."""
    with _LOCK, compat.outside_fake_mode():
        yield


_MUTABLE = (dict, list, set, deque, bytearray)
PLAIN = frozenset({dict, OrderedDict, list, set})
DEEPEST = 4
"""Most levels of nested containers that are followed."""


@contextmanager
def restored(modules: Sequence[nn.Module], others: Sequence[Any] = (), alone: Sequence[Any] = ()) -> Iterator[None]:
    """Restore attributes of modules and ``others``, what requires gradients, and RNG states, even after an exception.

    Containers and objects in ``alone`` are restored too, but not the objects inside them.

    Attribute dictionaries regain their entries in order; lists, dicts, sets and objects in them (hooks, buffers, a
    user's own caches) regain their contents and remain the same objects.
    """
    saved = _SavedContents()
    for module in modules:
        saved.save(vars(module))
    for other in others:
        saved.save(vars(other))
    for value in alone:
        saved.save_alone(value)
    scripted = [module for module in modules if isinstance(module, torch.jit.ScriptModule)]
    modes = [(module, module.training) for module in scripted if hasattr(module, "training")]  # Frozen ones have none.
    slots = [(module, name, tensor) for module in scripted for name, tensor in script_tensors(module)]
    learned = [(p, p.requires_grad) for module in modules for p in module._parameters.values() if p is not None]
    resets = global_resets()
    try:
        yield
    finally:
        saved.put_back()
        _require_as_before(learned)
        learned.clear()  # An exception may keep this frame alive, which would count as a holder.
        for module, training in modes:
            module.training = training
        for module, name, tensor in slots:
            module._c.setattr(name, tensor)
        for reset in resets:
            reset()


def _require_as_before(learned: Sequence[tuple[torch.Tensor, bool]]) -> None:
    for parameter, requires in learned:
        if parameter.requires_grad != requires:
            parameter.requires_grad_(requires)


_UNSET = object()
"""Stands for the value of a slot that has none."""


class _SavedContents:
    """The original contents of mutable containers, including nested ones."""

    def __init__(self) -> None:
        self.empty: list[Any] = []
        self.full: list[tuple[Any, list[Any]]] = []
        self.slots: list[tuple[Any, list[tuple[str, Any]]]] = []
        self.resets: list[Callable[[], object]] = []
        self.seen: set[int] = set()

    def save(self, container: Any, depth: int = 0) -> None:
        """Save a container and everything in it."""
        if not container:
            self.empty.append(container)
            return
        is_dict = isinstance(container, dict)
        self.full.append((container, list(container.items()) if is_dict else list(container)))
        if depth <= DEEPEST:
            for value in container.values() if is_dict else container:
                kind = type(value)
                if kind in PLAIN and not value:
                    self.empty.append(value)
                elif kind not in INERT:
                    self._save_inside(value, depth + 1)

    def save_alone(self, value: Any) -> None:
        """Save a container or object without its nested containers."""
        self._save_inside(value, DEEPEST + 1)

    def _save_inside(self, value: Any, depth: int) -> None:
        value = behind_proxy(value)
        if isinstance(value, _MUTABLE):
            if id(value) not in self.seen:
                self.seen.add(id(value))
                self.save(value, depth)
                self.save(getattr(value, "__dict__", {}), depth)
        elif isinstance(value, tuple):
            for item in value:
                if item.__class__ not in INERT:
                    self._save_inside(item, depth + 1)
        elif isinstance(value, torch.Tensor):
            self.save(value.__dict__, depth)
        elif not isinstance(value, OPAQUE) and id(value) not in self.seen:
            self.seen.add(id(value))
            reset = _reset_of(value)
            if reset is None:
                self._save_object(value, depth)
            else:
                self.resets.append(reset)

    def _save_object(self, value: Any, depth: int) -> None:
        """Save an object's attributes, those in slots too."""
        names = [name for name in slot_names(value) if not isinstance(getattr(type(value), name, None), property)]
        slots = [(name, getattr(value, name, _UNSET)) for name in names]
        if slots:
            self.slots.append((value, slots))
            self._save_inside(tuple(content for _, content in slots), depth)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.save(attributes, depth)

    def put_back(self) -> None:
        """Restore every container, writing only where it differs."""
        for container in self.empty:
            if container:
                container.clear()
        for container, content in self.full:
            refill(container, content)
        for reset in self.resets:
            reset()
        for holder, slots in self.slots:
            for name, value in slots:
                if getattr(holder, name, _UNSET) is value:
                    continue
                if value is _UNSET:
                    object.__delattr__(holder, name)
                else:
                    object.__setattr__(holder, name, value)
        for record in (self.empty, self.full, self.resets, self.slots):
            record.clear()  # An exception may keep this object alive, which would count as a holder.


LARGEST_ARRAY = 64 << 20
"""Most bytes of a NumPy array that is copied to be restored."""

OPAQUE = (nn.Module, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, weakref.ref, torch.ScriptObject)
"""Values that are not saved inside. Of tensors, only the attributes are saved."""


def _reset_of(value: Any) -> Callable[[], object] | None:
    """Return a function that resets a random generator or array to its current state; None for other values."""
    if isinstance(value, torch.Generator):
        tensor = value.get_state()
        return lambda: value.set_state(tensor)
    if isinstance(value, random.Random):
        state = value.getstate()
        return lambda: value.setstate(state)
    if isinstance(value, array.array):
        numbers = value[:]
        return lambda: value.__setitem__(slice(None), numbers)
    if isinstance(value, (io.BytesIO, io.StringIO)):
        file: Any = value
        written = None if value.closed else file.__getstate__()
        return lambda: None if written is None else file.__setstate__(written)
    if isinstance(value, queue.SimpleQueue):
        return _reset_of_queue(value)
    if isinstance(value, Iterator):
        return _reset_of_iterator(value)
    module = type(value).__module__
    if module == "numpy" and hasattr(value, "copy") and hasattr(value, "flags") and value.nbytes <= LARGEST_ARRAY:
        content = value.copy()
        return lambda: value.__setitem__(..., content) if value.flags.writeable else None
    if not module.startswith("numpy.random"):
        return None
    if hasattr(value, "spawn_key"):  # A SeedSequence, whose count of children cannot be set.
        return lambda: None
    if hasattr(value, "get_state"):
        state = value.get_state()
        return lambda: value.set_state(state)
    bits = getattr(value, "bit_generator", value)
    state = bits.state
    return lambda: setattr(bits, "state", state)


def _reset_of_queue(waiting: queue.SimpleQueue[Any]) -> Callable[[], object]:
    """Return a function that empties a queue and puts its current items back."""
    items = queued(waiting)

    def reset() -> None:
        emptied(waiting)
        for item in items:
            waiting.put(item)
        items.clear()  # The next search counts references.

    return reset


def _reset_of_iterator(iterator: Any) -> Callable[[], object] | None:
    """Return a function that puts back an iterator over a list, tuple or range, or a generator's variables."""
    if isinstance(iterator, GeneratorType):
        return reset_of_generator(iterator)
    if type(iterator).__module__ != "builtins" or not hasattr(iterator, "__setstate__"):
        return None
    state = iterator.__reduce__()[2:]
    return (lambda: iterator.__setstate__(*state)) if state else None


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
    elif isinstance(container, bytearray):
        if container != bytes(content):
            container[:] = bytes(content)
    elif len(container) != len(content) or any(a is not b for a, b in zip(container, content)):
        container.clear()
        container.extend(content)


def global_resets() -> list[Callable[[], object]]:
    """Return functions that reset global state a forward may change, above all random generators."""
    cpu, own, dtype = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    resets: list[Callable[[], object]] = [
        *_switches(),
        lambda: torch.set_rng_state(cpu),
        lambda: random.setstate(own),
        lambda: torch.set_default_dtype(dtype),
    ]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state()
        resets.append(lambda: numpy_random.set_state(state))
    if torch.cuda.is_initialized():
        cuda = torch.cuda.get_rng_state_all()
        resets.append(lambda: torch.cuda.set_rng_state_all(cuda))
    return resets


def _switches() -> list[Callable[[], object]]:
    """Return functions that put torch's own switches back, which import much if they are set for nothing."""
    switches: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
        (_precision, torch.set_float32_matmul_precision),
        (_determinism, lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1])),
        (_anomalies, lambda state: torch.set_anomaly_enabled(*state)),
    ]
    return [partial(_set_back, read, read(), write) for read, write in switches]


def _set_back(read: Callable[[], Any], state: Any, write: Callable[[Any], object]) -> None:
    if state is not None and read() != state:
        write(state)


def _precision() -> str | None:
    """Return the precision of float32 products; None if it was set by torch's newer settings, which differ."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def script_tensors(module: torch.jit.ScriptModule) -> list[tuple[str, torch.Tensor]]:
    """Return a scripted module's parameters and buffers by name; they are in C++, outside its dictionaries."""
    named = (*module._parameters.items(), *module._buffers.items())
    return [(name, tensor) for name, tensor in named if tensor is not None]


@contextmanager
def restored_reach(
    modules: Sequence[nn.Module], reach: Reached, others: Sequence[Any] = (), alone: Sequence[Any] = ()
) -> Iterator[Additions]:
    """Restore all reachable objects on exit, even after an exception, and those of :func:`restored`.

    A list or dict that only grew, by items without tensors, is a user's log and is kept, unless a number beside it
    changed. Yield what copies of logs add to them.
    """
    contents = [(container, items_of(container)) for container in reach.mutable if type(container) in LOGS]
    objects = [*(value for value in reach.mutable if type(value) not in LOGS), *alone]
    cells = [(cell, content_of(cell)) for cell in reach.cells]
    names = [(namespace, name, namespace[name]) for namespace, name in reach.globals]
    classes = [(kind, dict(vars(kind))) for kind in dict.fromkeys(reach.classes)]
    added, namespaces = Additions(), _namespaces([*reach.mutable, *alone], cells, names)
    try:
        with restored(modules, others, objects), numbers_watched(namespaces) as moved:
            yield added
    finally:
        for container, content in contents:
            added.add(container, added_to(container, content))
        _put_all_back(contents, cells, names, classes)
        added.keep(but=moved)
        for held in (contents, objects, cells, names, classes, namespaces):
            held.clear()  # The next search counts references, even if an exception keeps this frame alive.


def _namespaces(objects: list[Any], cells: list[Any], names: list[Any]) -> list[Namespace]:
    """Return each object's attributes, each dict's values, and all variables together."""

    def variables() -> list[Any]:
        contents = [[*content_of(cell), _UNSET][0] for cell, _ in cells]
        return contents + [namespace.get(name) for namespace, name, _ in names]

    namespaces: list[Namespace] = [(variables, variables())]
    for value in objects:
        attributes = value if type(value) is dict else getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and attributes:
            namespaces.append((partial(_values_of, attributes, list(attributes)), list(attributes.values())))
    return namespaces


def _values_of(attributes: Mapping[str, Any], names: list[str]) -> list[Any]:
    return [attributes.get(name) for name in names]


def _put_all_back(contents: list[Any], cells: list[Any], names: list[Any], classes: list[Any]) -> None:
    """Restore containers, closures' cells, globals and classes."""
    for container, content in contents:
        refill(container, content)
    for cell, content in cells:
        if [id(value) for value in content_of(cell)] != [id(value) for value in content]:
            _refill_cell(cell, content)
    for namespace, name, value in names:
        if namespace.get(name) is not value:
            namespace[name] = value
    for kind, attributes in classes:
        _reset_class(kind, attributes)


def reached_by_forward(modules: Sequence[nn.Module]) -> Reached:
    """Return the objects that hooks and forwards reach besides the modules' own attributes."""
    hooks = (
        hook for module in modules for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    )
    overrides = (vars(module).get("forward") for module in modules)
    return Reached([*hooks, *overrides, *{type(module): None for module in modules}, *compat.global_hooks])


def _reset_class(kind: type, attributes: Mapping[str, Any]) -> None:
    """Restore a class's attributes, except those that Python and torch add to it."""
    now = dict(vars(kind))
    for name in now.keys() | attributes.keys():
        if name not in attributes and holds_tensors([now[name]]):
            delattr(kind, name)
        elif name in attributes and now.get(name) is not attributes[name] and not name.startswith("__"):
            setattr(kind, name, attributes[name])


def _refill_cell(cell: CellType, content: Sequence[Any]) -> None:
    if content:
        cell.cell_contents = content[0]
    else:
        del cell.cell_contents
