"""Restore objects that code can reach besides the model: lists that hooks fill, closures and globals."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from types import CellType
from typing import Any

from torch import nn

from ..live.reach import Reached, content_of
from ..live.structures import all_tensors
from .swap import refill, restored

LOGS = (list, deque, dict)
"""Containers in which a program may keep a log."""


@contextmanager
def kept_besides(
    modules: Sequence[nn.Module], reach: Reached, others: Sequence[Any] = (), alone: Sequence[Any] = ()
) -> Iterator[None]:
    """Restore all reachable objects on exit, even after an exception, and those of :func:`restored`.

    A list or dict that only grew, by items without tensors, is a user's log and is kept.
    """
    contents = [(container, items_of(container)) for container in reach.mutable if type(container) in LOGS]
    objects = [*(value for value in reach.mutable if type(value) not in LOGS), *alone]
    cells = [(cell, content_of(cell)) for cell in reach.cells]
    names = [(namespace, name, namespace[name]) for namespace, name in reach.globals]
    classes = [(kind, dict(vars(kind))) for kind in dict.fromkeys(reach.classes)]
    try:
        with restored(modules, others, objects):
            yield
    finally:
        for container, content in contents:
            if not is_log(items_of(container), content):
                refill(container, content)
        for cell, content in cells:
            if [id(value) for value in content_of(cell)] != [id(value) for value in content]:
                _refill_cell(cell, content)
        for namespace, name, value in names:
            if namespace.get(name) is not value:
                namespace[name] = value
        for kind, attributes in classes:
            _reset_class(kind, attributes)
        contents.clear()  # The next search counts references to them, even if an exception keeps this frame alive.
        objects.clear()


def reached_by_forward(modules: Sequence[nn.Module]) -> Reached:
    """Return the objects that hooks and forwards reach besides the modules' own attributes."""
    hooks = (
        hook for module in modules for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    )
    overrides = (vars(module).get("forward") for module in modules)
    return Reached([*hooks, *overrides, *{type(module): None for module in modules}])


def items_of(container: Any) -> list[Any]:
    """Return the items of a list or deque, or those of a dict with their keys."""
    return list(container.items()) if isinstance(container, dict) else list(container)


def is_log(now: list[Any], before: list[Any]) -> bool:
    """Whether items are the earlier ones followed only by items without tensors."""
    parts = zip(chain.from_iterable(map(_parts, now)), chain.from_iterable(map(_parts, before)))
    return len(now) >= len(before) and all(a is b for a, b in parts) and not _holds_tensors(now[len(before) :])


def _holds_tensors(items: list[Any]) -> bool:
    """Whether items are, contain or reach tensors, as a copy of a model does."""
    if all_tensors(items):
        return True
    reached = Reached(items)
    return bool(reached.tensors or reached.modules or reached.optimizers)


def _parts(item: Any) -> tuple[Any, ...]:
    """Return the key and value of a dict's item, a tuple created on each access; any other item alone."""
    return item if type(item) is tuple else (item,)


def _reset_class(kind: type, attributes: Mapping[str, Any]) -> None:
    """Restore a class's attributes, except those that Python and torch add to it."""
    now = dict(vars(kind))
    for name in now.keys() | attributes.keys():
        if name not in attributes and _holds_tensors([now[name]]):
            delattr(kind, name)
        elif name in attributes and now.get(name) is not attributes[name] and not name.startswith("__"):
            setattr(kind, name, attributes[name])


def _refill_cell(cell: CellType, content: Sequence[Any]) -> None:
    if content:
        cell.cell_contents = content[0]
    else:
        del cell.cell_contents
