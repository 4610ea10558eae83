"""Tensors held only by entries of containers, such as a weight or state that each forward replaces.

A program frees such a tensor by rebinding its name. An exchanged tensor would live on, because whoever restores it has
to hold it; therefore a stand-in is put into the entries and the tensor itself is set aside.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from types import CellType, MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..live.exchange import StandIns
from ..live.fakes import Fake, is_plain
from ..live.reach import Reached, content_of, is_array_of_objects, queued
from ..live.structures import with_items

Entry = tuple[Any, Any]
"""A list, deque, dict, array or simple queue with an index or key; a closure's cell with None; a class with a name."""

_HELD_BY_CLASSES = (Tensor, tuple, list, dict, deque)
"""Attributes of classes that may hold tensors."""


class RebindableTensors:
    """Tensors reachable from some roots that are held only by lists, dicts, attributes, names and cells on the way.

    They include gradients held only by their tensors, which get a stand-in when these are exchanged, and tensors also
    held by autograd graphs; ``in_graphs`` counts those references by id. Of parameters, only those ``replaced`` are
    among them. The reachable objects must have no other references, since these would count as holders.
    """

    def __init__(
        self,
        reach: Reached,
        in_graphs: Mapping[int, int] = MappingProxyType({}),
        replaced: Container[int] = frozenset(),
    ) -> None:
        entries = _entries_of(reach)
        self.ids: set[int] = set()
        self._entries: list[Entry] = []
        self._filled: list[Entry] = []
        """The entries that hold stand-ins."""
        gradients = {id(tensor.grad) for tensor in reach.tensors if tensor.is_leaf and tensor.grad is not None}
        for index in range(len(reach.tensors)):
            key = id(reach.tensors[index])
            ours = _OF_A_GRADIENT if key in gradients else _OF_A_TENSOR
            holders = sys.getrefcount(reach.tensors[index]) - ours
            own = entries.get(key, [])
            if holders - in_graphs.get(key, 0) <= len(own) <= holders and _lets_go(
                reach.tensors[index], key in replaced
            ):
                self.ids.add(key)
                self._entries += own

    def clear(self) -> None:
        """Drop the references to the containers."""
        self._entries.clear()
        self._filled.clear()

    def containers(self) -> set[int]:
        """Return the ids of the lists, deques and dicts in which stand-ins are."""
        return {id(container) for container, _ in self._filled if isinstance(container, (list, deque, dict))}

    def empty(self, containers: Container[int]) -> None:
        """Let go of the stand-ins in some of these, by their ids."""
        for place in self._filled:
            if id(place[0]) in containers:
                put(place, None)
        self._filled = [place for place in self._filled if id(place[0]) not in containers]

    @contextmanager
    def exchanged(
        self, make: Callable[[Tensor], Tensor], copy_of: Callable[[Any], Any] = lambda _: None
    ) -> Iterator[StandIns]:
        """Put ``make``'s stand-ins in their places; yield the stand-ins by the ids of the originals.

        A tensor already exchanged by then, such as an offloaded weight, is skipped. If the steps use a copy of a
        container (``copy_of``), the copy gets the stand-in.
        """
        stand_ins: dict[int, Tensor] = {}

        def stand_in(value: Any) -> Any:
            if is_tuple(value):
                return with_items(value, map(stand_in, value))
            if not isinstance(value, Tensor) or id(value) not in self.ids or isinstance(value, Fake):
                return value
            if id(value) not in stand_ins:
                stand_ins[id(value)] = make(value)
            return stand_ins[id(value)]

        changed = []
        for place in {(id(container), key): (container, key) for container, key in self._entries}.values():
            value, copied = value_of(place), copy_of(place[0])
            if copied is not None:
                put((copied, place[1]), stand_in(value))
                continue
            put(place, stand_in(value))
            self._filled.append(place)
            changed.append((place, value, [weakref.ref(tensor) for tensor in _tensors_at(value_of(place))]))
        weak_stand_ins = {key: weakref.ref(tensor) for key, tensor in stand_ins.items()}
        stand_ins.clear()
        copied = value = None  # From here on, only the steps hold them.
        try:
            yield weak_stand_ins
        finally:
            for place, value, references in changed:
                now = _tensors_at(value_of(place))
                if len(now) == len(references) and all(item is other() for item, other in zip(now, references)):
                    put(place, value)


def _entries_of(reach: Reached) -> dict[int, list[Entry]]:
    """Return the entries that hold each tensor, by its id."""
    entries: dict[int, list[Entry]] = {}
    for place in entries_on_the_way(reach):
        for tensor in _tensors_at(value_of(place)):
            entries.setdefault(id(tensor), []).append(place)
    return entries


def entries_on_the_way(reach: Reached) -> Iterator[Entry]:
    """Yield every entry on the way, once."""
    containers: dict[int, Any] = {}
    for container in reach.mutable:
        entries = container if isinstance(container, (list, deque, dict)) else getattr(container, "__dict__", None)
        if isinstance(entries, (list, deque, dict)):
            containers[id(entries)] = entries
    for container in {id(container): container for container in reach.mutable}.values():
        if isinstance(container, SimpleQueue) or is_array_of_objects(container):
            count = container.qsize() if isinstance(container, SimpleQueue) else container.size
            yield from ((container, place) for place in range(count))
    for container in containers.values():
        keys = list(dict.keys(container)) if isinstance(container, dict) else range(len(container))
        yield from ((container, key) for key in keys)
    yield from ((cell, None) for cell in {id(cell): cell for cell in reach.cells}.values())
    for kind in {id(kind): kind for kind in reach.classes}.values():
        yield from ((kind, name) for name in [*vars(kind)] if isinstance(vars(kind)[name], _HELD_BY_CLASSES))
    names = {(id(namespace), name): (namespace, name) for namespace, name in reach.globals}
    yield from (place for place in names.values() if id(place[0]) not in containers)


def value_of(place: Entry) -> Any:
    """Return the value at an entry; None if it is gone."""
    container, key = place
    if isinstance(container, CellType):
        return next(iter(content_of(container)), None)
    if isinstance(container, SimpleQueue):
        return dict(enumerate(queued(container))).get(key)
    if is_array_of_objects(container):
        return container.flat[key] if key < container.size else None
    if isinstance(container, (dict, type)):
        return dict.get(container, key) if isinstance(container, dict) else vars(container).get(key)
    return container[key] if key < len(container) else None


def put(place: Entry, value: Any) -> None:
    """Store a value at an entry."""
    container, key = place
    if isinstance(container, CellType):
        container.cell_contents = value
    elif isinstance(container, type):
        type.__setattr__(container, key, value)
    elif isinstance(container, SimpleQueue):
        queued(container, {key: value})
    elif is_array_of_objects(container):
        container.flat[key] = value
    else:
        container[key] = value


def _tensors_at(value: Any) -> list[Tensor]:
    """Return the tensors of an entry; those in a tuple must have no other holder."""
    if type(value) in weakref.ProxyTypes:
        return []
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors_at(item)] if is_tuple(value) else []


def is_tuple(value: Any) -> bool:
    """Whether a value is a tuple or a named one."""
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make"))


def _lets_go(tensor: Tensor, is_replaced: bool) -> bool:
    """Whether a stand-in can take a tensor's place: it has no hooks or attributes, and no training unless replaced."""
    is_learned = isinstance(tensor, Parameter) or (tensor.is_leaf and tensor.requires_grad)
    if is_replaced:
        is_learned = tensor.grad is not None or bool(weakref.getweakrefcount(tensor))
    return is_plain(tensor) and not is_learned and not tensor._backward_hooks and not vars(tensor)


def _counted(gradient: bool) -> int:
    leaf = torch.ones(1, requires_grad=True)
    leaf.grad = torch.ones(1)
    holder = [leaf.grad if gradient else torch.ones(1)]
    return sys.getrefcount(holder[0])


_OF_A_TENSOR, _OF_A_GRADIENT = _counted(False), _counted(True)
"""Reference counts of an object held by a single list, and of such a gradient, which C++ may also hold."""
