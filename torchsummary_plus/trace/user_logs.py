"""A user's logs, such as a list of losses: what passes add to them is kept, but no other pass finds it there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from ..live.reach import Reached
from ..live.structures import all_tensors

LOGS = (list, deque, dict)
"""Containers in which a program may keep a log."""


class _Added:
    """What passes have added to logs, in order."""

    def __init__(self) -> None:
        self.items: dict[int, tuple[Any, list[Any]]] = {}

    def add(self, log: Any, items: list[Any]) -> None:
        self.items.setdefault(id(log), (log, []))[1].extend(items)


_open: list[_Added] = []


@contextmanager
def logs_set_aside() -> Iterator[None]:
    """Take what each pass adds to a log out of it until the last one has run, so that all passes start alike."""
    added = _Added()
    _open.append(added)
    try:
        yield
    finally:
        _open.pop()
        for log, items in added.items.values():
            keep(log, items)


def keep(log: Any, items: list[Any]) -> None:
    """Add items to a log, at once or once the last pass has run."""
    if _open:
        _open[-1].add(log, items)
    elif isinstance(log, dict):
        log.update(items)
    else:
        log.extend(items)


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
