"""Threads that run beside a pass, such as one that trains the model: what a pass replaces in torch is not for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from operator import attrgetter
from types import FunctionType
from typing import Any

_beside: frozenset[int | None] = frozenset()


@contextmanager
def others_noted() -> Iterator[None]:
    """Inside the block, the other threads that exist when it begins run beside the pass."""
    global _beside
    others = frozenset(map(attrgetter("ident"), threading.enumerate())) - {threading.get_ident()}
    outer, _beside = _beside, others
    try:
        yield
    finally:
        _beside = outer


def is_beside() -> bool:
    """Whether the current thread runs beside the pass rather than as a part of it."""
    return threading.get_ident() in _beside


def in_pass(stand_in: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``stand_in`` in a pass and ``usual`` in threads beside it."""

    @wraps(usual)
    def called(*args: Any, **kwargs: Any) -> Any:
        return (usual if is_beside() else stand_in)(*args, **kwargs)

    return called


def all_in_pass(answers: dict[tuple[Any, str], Any]) -> dict[tuple[Any, str], Any]:
    """Return replacements by module and name, of which functions are replaced in a pass alone."""
    return {
        place: in_pass(answer, getattr(*place)) if isinstance(answer, FunctionType) and hasattr(*place) else answer
        for place, answer in answers.items()
    }
