"""The variables of a suspended generator, which may keep tensors from one item to the next."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from inspect import GEN_SUSPENDED, getgeneratorstate
from types import FrameType, GeneratorType
from typing import Any


def reset_of_generator(generator: GeneratorType[Any, Any, Any]) -> Callable[[], object] | None:
    """Return a function that gives a generator its variables back, if it waits at the same place again.

    None for a generator that has not started, or that has finished. Items taken from it are gone.
    """
    frame = generator.gi_frame
    if frame is None or getgeneratorstate(generator) != GEN_SUSPENDED:
        return None
    place, variables = frame.f_lasti, variables_of(frame)

    def reset() -> None:
        now = generator.gi_frame
        if now is not None and now.f_lasti == place:
            _assign(now, variables)
        variables.clear()  # The next search counts references.

    return reset


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return a frame's variables, of which it keeps no copy."""
    current = frame.f_locals
    variables = dict(current)
    if sys.version_info < (3, 13):
        current.clear()
    return variables


def _assign(frame: FrameType, variables: Mapping[str, Any]) -> None:
    """Set a frame's variables. Source: PEP 667; before Python 3.13, ``f_locals`` is a copy."""
    current = frame.f_locals
    current.update(variables)
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        current.clear()
