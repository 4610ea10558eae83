"""Warnings at the line that called this package."""

from __future__ import annotations

import sys
import warnings

PACKAGE = __name__.partition(".")[0]


class LeftOutWarning(UserWarning):
    """Something in a file is left out of an answer; the message says what."""


def warn(message: str, category: type[Warning] = LeftOutWarning) -> None:
    """Warn at the innermost line outside this package and its decorators."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith((f"{PACKAGE}.", "contextlib")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
