"""Names through which code that is not copied finds objects: globals, attributes of classes, closures of methods.

Methods and the code of imported modules run as they are. While a pass runs, the names that they use refer to copies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import CellType, FunctionType
from typing import Any

from ..live import compat
from ..live.copying import USUAL, Copier, content_of
from ..live.reach import Reached

Place = tuple[Any, Any, Any]
"""A dictionary, closure's cell, class or function, the key or attribute, and the value there."""
_EMPTY = object()


@contextmanager
def names_replaced(copier: Copier, reach: Reached | None = None) -> Iterator[None]:
    """Inside the block, let the names that code uses which is not copied refer to copies, one for each value.

    ``reach`` is what all the code reaches; if None, it is found from what has been copied. Names have their values
    again afterwards, also those to which the code has assigned.
    """
    kinds = (kind for kind in copier.kinds() if kind not in USUAL and not _is_torchs(kind))
    reach = reach or Reached([*kinds, *copier.functions, *filter(None, compat.global_hooks)])
    classes = [(kind, dict(vars(kind))) for kind in dict.fromkeys(reach.classes) if not issubclass(kind, Enum)]
    own: list[Place] = []
    replaced: list[Place] = []
    for holder, name, value in _places(reach, copier, classes):  # One after the other: a global may be a function.
        own.append((holder, name, value))
        replaced.append((holder, name, copier.of(value)))
    try:
        while replaced:  # Afterwards only the copies hold each other.
            _put(*replaced.pop())
        yield
    finally:
        for place in own:
            _put(*place)
        for kind, attributes in classes:
            _reset(kind, attributes)


def _is_torchs(kind: type) -> bool:
    """Whether a class is one of torch's layers, rather than made at run time as for a parametrization."""
    name = kind.__module__
    return name.startswith("torch.nn.modules.") and vars(sys.modules[name]).get(kind.__name__) is kind


def _places(reach: Reached, copier: Copier, classes: list[tuple[type, dict[str, Any]]]) -> Iterator[Place]:
    """Yield the places in which code that is not copied finds values; functions that are have their own."""
    for namespace, name, function in reach.globals:
        if function is None or copier.known(function) is None:
            yield namespace, name, namespace[name]
    for hooks in compat.global_hooks:
        yield from ((hooks, key, hook) for key, hook in hooks.items())
    for cell, function in reach.cells:
        if copier.known(function) is None:
            yield cell, None, next(iter(content_of(cell)), _EMPTY)
    for function in reach.functions:
        if copier.known(function) is not None:
            continue
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                yield function, name, getattr(function, name)
        yield from ((vars(function), name, value) for name, value in vars(function).items())
    for kind, attributes in classes:
        yield from ((kind, name, value) for name, value in attributes.items() if _holds(name, value))


def _holds(name: str, value: Any) -> bool:
    """Whether an attribute of a class is a value of the user's rather than a method or Python's own."""
    return not (name.startswith("__") or isinstance(value, (FunctionType, classmethod)) or hasattr(value, "__get__"))


def _put(holder: Any, name: Any, value: Any) -> None:
    """Put a value in its place, unless it is there."""
    if isinstance(holder, CellType):
        if next(iter(content_of(holder)), _EMPTY) is value:
            return
        if value is _EMPTY:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif isinstance(holder, dict):
        if holder.get(name, _EMPTY) is not value:
            holder[name] = value
    elif isinstance(holder, type):
        if vars(holder).get(name, _EMPTY) is not value:
            setattr(holder, name, value)
    elif getattr(holder, name) is not value:
        setattr(holder, name, value)


def _reset(kind: type, own: Mapping[str, Any]) -> None:
    """Restore a class's attributes, except those that Python and torch add to it."""
    now = dict(vars(kind))
    for name in now.keys() | own.keys():
        if name not in own and Reached([now[name]]).tensors:
            delattr(kind, name)
        elif name in own and now.get(name) is not own[name] and not name.startswith("__"):
            setattr(kind, name, own[name])
