"""A user's logs, such as a list of losses: what passes add to them is kept, but no other pass finds it there.

Only a list or dict of a variable is a log, or one in such a list or dict. One in an object goes with the object's other
attributes, which are restored, such as the position in a ring buffer; and nothing is kept if a pass rebinds variables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from ..live.reach import Reached
from ..live.structures import all_tensors

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

    def keep(self, variables: Iterable[Any] | None = None) -> None:
        """Add to the logs, or to those that variables hold: at once, or once the last pass has run."""
        logs = self._items.keys() if variables is None else set(_containers(variables))
        for number, (log, items) in self._items.items():
            if number not in logs:
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
    """Return what has been added to a log after its earlier items; nothing if it is none, or holds tensors."""
    now = items_of(container) if type(container) in LOGS else []
    parts = zip(chain.from_iterable(map(_parts, now)), chain.from_iterable(map(_parts, before)))
    grew = len(now) > len(before) and all(a is b for a, b in parts)
    return now[len(before) :] if grew and not holds_tensors(now) else []


def holds_tensors(items: list[Any]) -> bool:
    """Whether items are, contain or reach tensors, as a copy of a model does."""
    if all_tensors(items):
        return True
    reached = Reached(items)
    return bool(reached.tensors or reached.modules or reached.optimizers)


def _parts(item: Any) -> tuple[Any, ...]:
    """Return the key and value of a dict's item, a tuple created on each access; any other item alone."""
    return item if type(item) is tuple else (item,)
