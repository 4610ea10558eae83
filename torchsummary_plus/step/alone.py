"""Tensors that entries of containers alone hold, such as a weight or a state that each forward replaces.

A program lets go of such a tensor when it binds another one to the name. An exchanged tensor would live on, as whoever
puts it back has to hold it: here a stand-in is put into the entries, and the tensor itself stays aside.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..live.exchange import StandIns
from ..live.fakes import Fake, is_plain
from ..live.reach import Reached, content_of

Entry = tuple[Any, Any]
"""A list, deque or dict and the index or key in it; or a closure's cell and None."""


class Alone:
    """The tensors that some roots lead to and nobody but lists, dicts, attributes, names and cells on the way holds.

    So are gradients that only their tensors hold; these get a stand-in when they are exchanged. Nobody else must have
    heard of what is reached: references of others count as holders.
    """

    def __init__(self, found: Reached) -> None:
        entries = _entries_of(found)
        self.ids: set[int] = set()
        self._entries: list[Entry] = []
        gradients = {id(tensor.grad) for tensor in found.tensors if tensor.is_leaf and tensor.grad is not None}
        for index in range(len(found.tensors)):
            key = id(found.tensors[index])
            ours = _OF_A_GRADIENT if key in gradients else _OF_A_TENSOR
            holders = sys.getrefcount(found.tensors[index]) - ours
            if len(entries.get(key, [])) == holders and _lets_go(found.tensors[index]):
                self.ids.add(key)
                self._entries += entries.get(key, [])

    @contextmanager
    def exchanged(self, make: Callable[[Tensor], Tensor]) -> Iterator[StandIns]:
        """While it holds, what ``make`` makes of them is in their place; gives it by the id of what it stands for.

        One that has been exchanged by now, such as an offloaded weight, is left to that.
        """
        made: dict[int, Tensor] = {}

        def stand_in(value: Any) -> Any:
            if type(value) is tuple:
                return tuple(map(stand_in, value))
            if not isinstance(value, Tensor) or id(value) not in self.ids or isinstance(value, Fake):
                return value
            if id(value) not in made:
                made[id(value)] = make(value)
            return made[id(value)]

        changed = []
        for place in {(id(container), key): (container, key) for container, key in self._entries}.values():
            value = _value(place)
            _put(place, stand_in(value))
            changed.append((place, value, [weakref.ref(tensor) for tensor in _held(_value(place))]))
        given = {key: weakref.ref(tensor) for key, tensor in made.items()}
        made.clear()
        try:
            yield given
        finally:
            for place, value, there in changed:
                now = _held(_value(place))
                if len(now) == len(there) and all(one is other() for one, other in zip(now, there)):
                    _put(place, value)


def _entries_of(found: Reached) -> dict[int, list[Entry]]:
    """The entries that hold each tensor, by its id."""
    entries: dict[int, list[Entry]] = {}
    for place in _entries(found):
        for tensor in _held(_value(place)):
            entries.setdefault(id(tensor), []).append(place)
    return entries


def _entries(found: Reached) -> Iterator[Entry]:
    """Every entry on the way, once."""
    containers: dict[int, Any] = {}
    for one in found.mutable:
        held = one if isinstance(one, (list, deque, dict)) else getattr(one, "__dict__", None)
        if isinstance(held, (list, deque, dict)):
            containers[id(held)] = held
    for container in containers.values():
        keys = list(dict.keys(container)) if isinstance(container, dict) else range(len(container))
        yield from ((container, key) for key in keys)
    yield from ((cell, None) for cell in {id(cell): cell for cell in found.cells}.values())
    names = {(id(namespace), name): (namespace, name) for namespace, name in found.globals}
    yield from (place for place in names.values() if id(place[0]) not in containers)


def _value(place: Entry) -> Any:
    container, key = place
    if isinstance(container, CellType):
        return next(iter(content_of(container)), None)
    if isinstance(container, dict):
        return dict.get(container, key)
    return container[key] if key < len(container) else None


def _put(place: Entry, value: Any) -> None:
    container, key = place
    if isinstance(container, CellType):
        container.cell_contents = value
    else:
        container[key] = value


def _held(value: Any) -> list[Tensor]:
    """The tensor that an entry is; those in a tuple, which nobody else must hold."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _held(item)] if type(value) is tuple else []


def _lets_go(tensor: Tensor) -> bool:
    """Whether a stand-in does for a tensor: it is not learned, and has no hooks or attributes."""
    is_learned = isinstance(tensor, Parameter) or (tensor.is_leaf and tensor.requires_grad)
    return is_plain(tensor) and not is_learned and not tensor._backward_hooks and not vars(tensor)


def _counted(gradient: bool) -> int:
    leaf = torch.ones(1, requires_grad=True)
    leaf.grad = torch.ones(1)
    held = [leaf.grad if gradient else torch.ones(1)]
    return sys.getrefcount(held[0])


_OF_A_TENSOR, _OF_A_GRADIENT = _counted(False), _counted(True)
"""The references of what only one list holds, with that of who asks; and of a gradient there, which C++ may hold."""
