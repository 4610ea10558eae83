"""Containers and objects that a single entry holds, such as a list or cache that each step replaces by a new one.

A program frees what they hold by rebinding a name. The original would live on, because whoever restores it has to hold
it; therefore the steps get a copy, in which stand-ins are put for tensors that nothing else holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..live.reach import Reached
from ..trace.swap import MODULE_DICTS
from ..trace.user_logs import INERT, has_new_number
from .rebindable_objects import KINDS, duplicate, is_known_weakly, is_rebound, is_replaceable, items, parts
from .rebindable_tensors import Entry, entries_on_the_way, is_tuple, put, value_of

Settle = Callable[[Any, Any], None]
"""Moves the items worth keeping from a copy to its original."""


class RebindableContainers:
    """Containers with one holder whose items are plain values, tensors of :meth:`restrict_to`, or such containers.

    So are objects of Python classes and other models that the code rebinds, which may hold other things beside such a
    tensor. The reachable objects must have no other references, which would count as holders. Containers of modules and
    optimizers are not among them, since torch refers to those elsewhere, except a state that the code replaces.
    """

    def __init__(self, reach: Reached) -> None:
        modules = {id(module) for module in reach.modules}
        counts = {
            id(container): sys.getrefcount(container) - _OF_A_CONTAINER - (id(container) in modules)
            for container in reach.mutable
            if is_replaceable(container)
        }
        own = _of_torch(reach)
        places = [place for place in entries_on_the_way(reach) if counts.get(id(value_of(place))) == 1]
        lone = {id(value_of(place)): place for place in places if not _is_of_torch(place, own)}
        self._lone = _rebound(lone, reach)
        self._outermost: list[Entry] = []
        self._tensors: Container[int] = ()
        self._copies: dict[int, Any] = {}

    @property
    def parameters(self) -> frozenset[int]:
        """Ids of the parameters of other models among them."""
        found = map(value_of, self._lone.values())
        modules = (value for value in found if isinstance(value, nn.Module))
        return frozenset(id(p) for module in modules for p in module._parameters.values() if p is not None)

    def restrict_to(self, tensors: Container[int]) -> None:
        """Keep the containers whose items are plain, or among ``tensors``: ids of those that only containers hold."""
        self._tensors = tensors
        for key, place in list(self._lone.items()):
            if not self._is_plain(value_of(place)):
                del self._lone[key]
        inside = {id(part) for place in self._lone.values() for part in parts(value_of(place))}
        self._outermost = [place for place in self._lone.values() if id(place[0]) not in inside]

    def _is_plain(self, container: Any) -> bool:
        if is_known_weakly(container):
            return False
        values = [value for part in parts(container) for _, value in items(part)]
        if type(container) not in KINDS and any(map(self._is_let_go, values)):
            return True
        return all(map(self._is_plain_item, values))

    def _is_plain_item(self, item: Any) -> bool:
        if is_tuple(item):
            return all(map(self._is_plain_item, item))
        return type(item) in INERT or self._is_let_go(item)

    def _is_let_go(self, item: Any) -> bool:
        return id(item) in self._tensors or (id(item) in self._lone and self._is_plain(item))

    def copy_of(self, part: Any) -> Any:
        """Return the copy that the steps use of a container, or of an object's attributes; None without one."""
        return self._copies.get(id(part))

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
        new = duplicate(container)
        for part, copied in zip(parts(container), parts(new)):
            self._copies[id(part)] = copied
            for key, value in [] if isinstance(part, set) else items(part):
                if id(value) in self._lone:
                    copied[key] = self._copy(value)
        return new

    def _settle(self, original: Any, now: Any, settle: Settle) -> None:
        for part, entries in zip(parts(original), parts(now)):
            pairs = [] if isinstance(part, set) else [(key, old, value_of((entries, key))) for key, old in items(part)]
            numbered = has_new_number([old for _, old, _ in pairs], [new for _, _, new in pairs])
            for key, value, inner in pairs:
                if id(value) in self._lone and type(inner) is type(value):
                    self._settle(value, inner, _settle_nothing if numbered else settle)
                    entries[key] = value
        settle(original, now)


def _settle_nothing(original: Any, now: Any) -> None:
    """Let a container go with the number beside it, which the steps changed."""


def _rebound(lone: dict[int, Entry], reach: Reached) -> dict[int, Entry]:
    """Return the containers, the objects and modules in whose places the code may put others, and all inside those."""
    kept: dict[int, Entry] = {}
    inside: set[int] = set()
    while True:
        new = {}
        for key, place in lone.items():
            value = value_of(place)
            if key not in kept and (type(value) in KINDS or id(place[0]) in inside or is_rebound(place, value, reach)):
                new[key] = place
                inside.update(map(id, parts(value)))
        if not new:
            return kept
        kept.update(new)


def _of_torch(reach: Reached) -> dict[int, frozenset[str]]:
    """Return the attributes of modules and optimizers that are torch's, by the id of their dictionaries."""
    own = {id(vars(module)): MODULE_DICTS for module in reach.modules}
    replaced = {"state"} & reach.rebinds
    return {**own, **{id(vars(optimizer)): frozenset(vars(optimizer)) - replaced for optimizer in reach.optimizers}}


def _is_of_torch(place: Entry, own: dict[int, frozenset[str]]) -> bool:
    return place[1] in own.get(id(place[0]), ()) if isinstance(place[1], str) else False


def _counted() -> int:
    holder: list[list[Any]] = [[]]
    return next(sys.getrefcount(container) for container in holder)


_OF_A_CONTAINER = _counted()
"""Reference count of a container held by a single list, while it is iterated over."""
