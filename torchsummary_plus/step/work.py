"""A listener that counts a step's multiply-adds, by phase."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from ..ops.macs import multiply_adds
from ..trace.passes import Frame, Listener


class _Clock(Protocol):
    """The current phase and step."""

    phase: str
    step: int


class Work(Listener):
    """Counts the multiply-adds of the last step by phase; operators between phases count as the forward's.

    A backward is counted as it runs: a frozen weight has no gradient, and costs nothing.
    """

    def __init__(self, clock: _Clock) -> None:
        self.clock = clock
        self.step = -1
        self.mult_adds: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Add the operator's multiply-adds to its phase; a new step starts over."""
        if self.clock.step != self.step:
            self.step = self.clock.step
            self.mult_adds, self.unknown = Counter(), Counter()
        count = multiply_adds(func, args, kwargs, out)
        if count is None:
            self.unknown[str(func)] += 1
        elif count:
            phase = self.clock.phase
            self.mult_adds[phase if phase in ("backward", "optimizer") else "forward"] += count
