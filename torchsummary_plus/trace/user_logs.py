"""A user's logs, such as a list of losses: what passes add to them is kept, but no other pass finds it there.

A list whose object has a number that the pass changed is no log: it is restored with the number, which may be the
position in a ring buffer. The step's variables go together like an object's attributes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from ..live.reach import Reached
from ..live.structures import all_tensors

INERT = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
"""Types of plain values, which cannot change."""

LOGS = (list, deque, dict)
"""Containers in which a program may keep a log."""


class Additions:
    """What a pass, or several, have added to logs, in order."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[Any, list[Any]]] = {}

    def add(self, log: Any, items: list[Any]) -> None:
        """Note items added to a log."""
        if items:
            self._items.setdefault(id(log), (log, []))[1].extend(items)

    def keep(self, but: Container[int] = ()) -> None:
        """Add everything to the logs, at once or once the last pass has run, except to those with certain ids."""
        for number, (log, items) in self._items.items():
            if number in but:
                continue
            if _set_aside:
                _set_aside[-1].add(log, items)
            elif isinstance(log, dict):
                log.update(items)
            else:
                log.extend(items)


_set_aside: list[Additions] = []


@contextmanager
def logs_set_aside() -> Iterator[None]:
    """Take what each pass adds to a log out of it until the last one has run, so that all passes start alike."""
    added = Additions()
    _set_aside.append(added)
    try:
        yield
    finally:
        _set_aside.pop()
        added.keep()


Namespace = tuple[Callable[[], Iterable[Any]], list[Any]]
"""A way to read the values of an object's attributes or a step's variables, and the values before the pass."""


@contextmanager
def numbers_watched(namespaces: Sequence[Namespace]) -> Iterator[set[int]]:
    """Yield a set, filled at the end with the ids of all containers in a namespace that has a changed plain value."""
    moved: set[int] = set()
    try:
        yield moved
    finally:
        for read, before in namespaces:
            if has_new_number(before, read()):
                moved.update(_containers(before))


def has_new_number(before: Iterable[Any], now: Iterable[Any]) -> bool:
    """Whether a plain value, such as a number, was replaced by another."""
    return any(new is not old and type(new) in INERT and type(old) in INERT for old, new in zip(before, now))


def _containers(values: Iterable[Any]) -> Iterator[int]:
    """Yield the ids of plain containers among values, and in those; each once."""
    known: set[int] = set()
    left = deque(values)
    while left:
        value = left.popleft()
        if type(value) not in (*LOGS, tuple) or id(value) in known:
            continue
        known.add(id(value))
        yield id(value)
        left.extend(value.values() if isinstance(value, dict) else value)


def items_of(container: Any) -> list[Any]:
    """Return the items of a list or deque, or those of a dict with their keys."""
    return list(container.items()) if isinstance(container, dict) else list(container)


def added_to(container: Any, before: list[Any]) -> list[Any]:
    """Return what has been added to a log after its earlier items; nothing if it is none, with tensors or arrays."""
    now = items_of(container) if type(container) in LOGS else []
    parts = zip(chain.from_iterable(map(_parts, now)), chain.from_iterable(map(_parts, before)))
    grew = len(now) > len(before) and all(a is b for a, b in parts)
    return now[len(before) :] if grew and not holds_tensors(now) and not _holds_arrays(now[len(before) :]) else []


def holds_tensors(items: list[Any]) -> bool:
    """Whether items are, contain or reach tensors, as a copy of a model does."""
    if all_tensors(items):
        return True
    reached = Reached(items)
    return bool(reached.tensors or reached.modules or reached.optimizers)


def _holds_arrays(items: list[Any]) -> bool:
    """Whether items are, contain or reach NumPy's arrays, as the observations do that an agent remembers."""
    return any(type(value).__module__ == "numpy" and hasattr(value, "__setitem__") for value in Reached(items).mutable)


def _parts(item: Any) -> tuple[Any, ...]:
    """Return the key and value of a dict's item, a tuple created on each access; any other item alone."""
    return item if type(item) is tuple else (item,)
