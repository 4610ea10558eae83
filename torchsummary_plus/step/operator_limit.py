"""A limit on the operators of a recording: a Python loop over the elements of a tensor would take minutes."""

from __future__ import annotations

from typing import Any

from ..data.errors import UnsupportedError
from ..table.forward import Frame, Listener

MOST_OPERATORS = 1_000_000
"""Most operators of a recording or a real pass: one or two minutes."""


class OperatorLimit(Listener):
    """Counts operators, and ends a recording that has too many."""

    def __init__(self) -> None:
        self.operators = 0

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count the operator; raises :class:`UnsupportedError` beyond the limit."""
        self.operators += 1
        if self.operators > MOST_OPERATORS:
            raise too_long(f"it calls more than {MOST_OPERATORS:,} operators")


def too_long(why: str) -> UnsupportedError:
    """Return the error for a step that is too long to estimate."""
    return UnsupportedError(
        f"the step is too long to estimate: {why}; pass a smaller input or fewer micro-batches if the code loops over "
        "elements or micro-batches, or use measure_memory, which runs the step for real"
    )
