"""Containers that a single entry holds, such as a list that hooks fill and each step then replaces by a new one.

A program frees what such a list holds by rebinding its name. The original would live on, because whoever restores it
has to hold it; therefore the steps get a copy, in which stand-ins are put for tensors that nothing else holds.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from ..live.reach import Reached
from ..trace.restore import INERT
from ..trace.swap import MODULE_DICTS
from .rebindable_tensors import Entry, entries_on_the_way, is_tuple, put, value_of

_KINDS = frozenset({list, dict, set, deque, defaultdict, OrderedDict})

Settle = Callable[[Any, Any], None]
"""Moves the items worth keeping from a copy to its original."""


class RebindableContainers:
    """Containers with one holder whose items are plain values, tensors of :meth:`restrict_to`, or such containers.

    The reachable objects must have no other references, which would count as holders. Containers of modules and
    optimizers themselves, such as hooks and states, are not among them: torch refers to those elsewhere.
    """

    def __init__(self, reach: Reached) -> None:
        counts = {
            id(container): sys.getrefcount(container) - _OF_A_CONTAINER
            for container in reach.mutable
            if type(container) in _KINDS
        }
        own = _of_torch(reach)
        places = [place for place in entries_on_the_way(reach) if counts.get(id(value_of(place))) == 1]
        self._lone = {id(value_of(place)): place for place in places if not _is_of_torch(place, own)}
        self._outermost: list[Entry] = []
        self._tensors: Container[int] = ()
        self._copies: dict[int, Any] = {}

    def restrict_to(self, tensors: Container[int]) -> None:
        """Keep the containers whose items are plain, or among ``tensors``: ids of those that only containers hold."""
        self._tensors = tensors
        for key, place in list(self._lone.items()):
            if not self._is_plain(value_of(place)):
                del self._lone[key]
        self._outermost = [place for place in self._lone.values() if id(place[0]) not in self._lone]

    def _is_plain(self, container: Any) -> bool:
        if weakref.getweakrefcount(container):
            return False
        return all(map(self._is_plain_item, container.values() if isinstance(container, dict) else container))

    def _is_plain_item(self, item: Any) -> bool:
        if is_tuple(item):
            return all(map(self._is_plain_item, item))
        is_let_go = type(item) in INERT or id(item) in self._tensors
        return is_let_go or (id(item) in self._lone and self._is_plain(item))

    def copy_of(self, container: Any) -> Any:
        """Return the copy of a container that the steps use, or None."""
        return self._copies.get(id(container))

    def forget_copies(self) -> None:
        """Drop the references to the copies, so that only the steps hold them."""
        self._copies.clear()

    @contextmanager
    def copied(self, settle: Settle) -> Iterator[None]:
        """Put copies in the containers' places; at the end, ``settle`` each original whose copy is still there."""
        changed = []
        for place in self._outermost:
            original = value_of(place)
            put(place, self._copy(original))
            changed.append((place, original, id(value_of(place))))
        try:
            yield
        finally:
            for place, original, known in changed:
                if id(value_of(place)) == known:
                    self._settle(original, value_of(place), settle)
                    put(place, original)

    def clear(self) -> None:
        """Drop the references to the containers."""
        self._lone.clear()
        self._outermost.clear()
        self._copies.clear()

    def _copy(self, container: Any) -> Any:
        new = self._copies[id(container)] = copy(container)
        for key, value in _inside(container):
            if id(value) in self._lone:
                new[key] = self._copy(value)
        return new

    def _settle(self, original: Any, now: Any, settle: Settle) -> None:
        for key, value in _inside(original):
            inner = value_of((now, key))
            if id(value) in self._lone and type(inner) is type(value):
                self._settle(value, inner, settle)
                now[key] = value
        settle(original, now)


def _inside(container: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and values of a container that can hold another."""
    if isinstance(container, set):
        return []
    return list(container.items() if isinstance(container, dict) else enumerate(container))


def _of_torch(reach: Reached) -> dict[int, frozenset[str]]:
    """Return the attributes of modules and optimizers that are torch's, by the id of their dictionaries."""
    own = {id(vars(module)): MODULE_DICTS for module in reach.modules}
    return {**own, **{id(vars(optimizer)): frozenset(vars(optimizer)) for optimizer in reach.optimizers}}


def _is_of_torch(place: Entry, own: dict[int, frozenset[str]]) -> bool:
    return place[1] in own.get(id(place[0]), ()) if isinstance(place[1], str) else False


def _counted() -> int:
    holder: list[list[Any]] = [[]]
    return next(sys.getrefcount(container) for container in holder)


_OF_A_CONTAINER = _counted()
"""Reference count of a container held by a single list, while it is iterated over."""
