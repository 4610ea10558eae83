"""Results that ``functools.lru_cache`` keeps for the functions of a model's package, such as tables of positions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from torch import Tensor

from .code_names import package_of
from .copying import content_of
from .reach import CACHED
from .structures import PLAIN, parts

_OURS = __name__.partition(".")[0]
_OTHERS = sys.stdlib_module_names | {"torch", "numpy", _OURS}
"""Packages whose functions keep no tensors of a model."""
_SEQUENCES = frozenset((list, tuple, set, frozenset))
"""Containers that are searched by C iterators, because packages keep tens of thousands of names in them."""


@contextmanager
def without_cached_tensors(objects: Iterable[Any], known: Iterable[Any] = ()) -> Iterator[None]:
    """Empty the caches that hold tensors, on entry and on exit, so that a step fills them itself and leaves none.

    ``objects`` are functions and objects whose packages are searched for caches besides those ``known``.
    """
    caches = [*known, *_caches({package_of(function) for function in objects} - _OTHERS)]
    _empty(caches)
    try:
        yield
    finally:
        _empty(caches)


def _caches(packages: set[str]) -> list[Any]:
    """Return the cached functions that modules of some packages name, or that their functions and methods wrap."""
    caches: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages:
            named = list(getattr(module, "__dict__", {}).values())
            kinds = [kind for kind in named if issubclass(type(kind), type) and kind.__module__ == name]
            methods = [_behind(value) for kind in kinds for value in list(vars(kind).values())]
            caches.update(
                (id(value), value) for value in (*named, *_wrapped((*named, *methods))) if type(value) is CACHED
            )
    return list(caches.values())


def _behind(value: Any) -> Any:
    return value.__func__ if type(value) in (staticmethod, classmethod) else value


def _wrapped(values: Iterable[Any]) -> Iterator[Any]:
    """Yield what functions made by decorators keep in their closures."""
    for value in values:
        if type(value) is FunctionType and value.__closure__:
            for cell in value.__closure__:
                yield from content_of(cell)


def _empty(caches: Iterable[Any]) -> None:
    for cache in caches:
        if cache.cache_info().currsize and _holds_a_tensor(gc.get_referents(cache)):
            cache.cache_clear()


def _holds_a_tensor(values: list[Any]) -> bool:
    """Return whether a tensor is reachable from some values; summaries and estimates, often large, are skipped.

    Untracked objects, such as text or a tuple of numbers, refer to nothing that the garbage collector tracks.
    """
    waiting, seen = list(filter(gc.is_tracked, values)), set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kind = type(value)
        if kind is dict:
            waiting.extend(filter(gc.is_tracked, value.values()))
        elif kind in _SEQUENCES:
            waiting.extend(filter(gc.is_tracked, value))
        elif isinstance(value, Tensor):
            return True
        elif not isinstance(value, PLAIN) and package_of(kind) != _OURS:
            waiting.extend(part for _, part in parts(value) if gc.is_tracked(part))
    return False
