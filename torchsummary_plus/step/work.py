"""A listener that counts a step's multiply-adds, by phase, and keeps its kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from ..data.kernel_records import Kernel
from ..data.memory_records import Moment
from ..ops.macs import multiply_adds
from ..ops.traffic import kernels_of
from ..table.forward import Frame, Listener


class _Clock(Protocol):
    """The current phase and step, the moments so far, and the device whose memory is recorded."""

    phase: str
    step: int
    moments: list[Moment]
    backend: str


class Work(Listener):
    """Counts the multiply-adds of the last step by phase; operators between phases count as the forward's.

    ``kernels`` are those of the last step; the clock has recorded an operator's moment before.

    A backward is counted as it runs: a frozen weight has no gradient, and costs nothing.
    """

    def __init__(self, clock: _Clock, steps: int) -> None:
        self.clock = clock
        self.steps = steps
        self.step = -1
        self.mult_adds: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.kernels: list[Kernel] = []

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Add the operator's multiply-adds to its phase; a new step starts over."""
        if self.clock.step != self.step:
            self.step = self.clock.step
            self.mult_adds, self.unknown, self.kernels = Counter(), Counter(), []
        count = multiply_adds(func, args, kwargs, out)
        if count is None:
            self.unknown[str(func)] += 1
        elif count:
            phase = self.clock.phase
            self.mult_adds[phase if phase in ("backward", "optimizer") else "forward"] += count
        if self.step < self.steps - 1:
            return
        self.kernels += kernels_of(len(self.clock.moments) - 1, func, args, kwargs, out, count or 0, self.clock.backend)
