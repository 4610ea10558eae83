"""The largest batch that fits: foretold from a few traces, and proved by tracing it and the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ..data.memory_records import MemoryLog, StepInfo
from ..data.units import mebibytes
from .scaling import at_batch, scales

LARGEST_BATCH = 1 << 24
"""Where the search ends: a batch beyond reason."""

MOST_TRACES = 6
"""Traces that a search may take, whatever the model."""


@dataclass(frozen=True, slots=True)
class BatchSizeLimit:
    """The largest batch that fits, with its peak and the next one's, in bytes, and the module that holds most of it.

    ``memory_bytes`` is what it is to fit in, and ``memory`` the text that it was asked for by ("" for bytes),
    such as "RTX 4090"; ``context_bytes`` of it are left to the CUDA context, the most that one takes. ``info`` is the
    step at that batch: its mode, numbers, device, card, optimizer and loss.

    Both peaks are without the scratch memory that kernels can spare where there is little left.
    ``batch_size`` is 0 where not even a batch of 1 fits; ``missing_bytes`` says by how much. It is ``LARGEST_BATCH``
    where that fits, and more may. ``traced`` are the batches whose step was traced.
    """

    batch_size: int
    peak_bytes: int
    next_peak_bytes: int
    held_by: str
    missing_bytes: int
    traced: tuple[int, ...]
    memory: str
    memory_bytes: int
    context_bytes: int
    info: StepInfo

    @property
    def is_proved(self) -> bool:
        """Whether the steps of this batch and of the next were traced, rather than scaled from others."""
        return {self.batch_size, self.batch_size + 1} - {0} <= set(self.traced)

    def __str__(self) -> str:
        return f"{self._found}; {self._asked}"

    @property
    def _found(self) -> str:
        if not self.batch_size:
            return f"A batch of 1 does not fit: {mebibytes(self.missing_bytes)} MB short"
        more = "more than " if self.batch_size >= LARGEST_BATCH else ""
        return (
            f"Largest batch: {more}{self.batch_size:,} (peak {mebibytes(self.peak_bytes)} MB; "
            f"{self.batch_size + 1:,} would take {mebibytes(self.next_peak_bytes)} MB); "
            f"{self.held_by or 'the root'} holds the most"
        )

    @property
    def _asked(self) -> str:
        """The step and its limit, in words."""
        step = "a training" if self.info.mode == "train" else "an inference"
        name = f" ({self.memory})" if self.memory and not self.info.gpu else ""
        limit = f"{mebibytes(self.memory_bytes)} MB{name}"
        if self.context_bytes:
            limit += f" less {mebibytes(self.context_bytes)} for the context"
        return f"{step} step in {limit}, {self.info.settings}"


class Search:
    """The search for the largest batch whose log fits.

    ``trace`` gives the log of a batch, ``fits`` the verdict on a log, ``spare`` the bytes that its peak leaves free.
    """

    def __init__(
        self, trace: Callable[[int], MemoryLog], fits: Callable[[MemoryLog], bool], spare: Callable[[MemoryLog], int]
    ) -> None:
        self._trace = trace
        self._fits = fits
        self._spare = spare
        self.logs: dict[int, MemoryLog] = {}
        """The traced logs by batch."""
        self.low, self.high = 0, LARGEST_BATCH + 1
        """The largest batch that is known to fit, and the smallest one known not to."""

    def run(self) -> int:
        """Return the largest batch that fits, 0 where 1 does not.

        Two small traces foretell it. What is foretold is traced, with the batch after it; what these two show improves
        the next guess. After ``MOST_TRACES`` the last guess stands, unproved; one that no two traces foretell gives way
        to the largest batch that was traced and fits.
        """
        self._add(2)
        if self.high > 2:
            self._add(3)
        while self.high - self.low > 1:
            guess = self._guess()
            if len(self.logs) == MOST_TRACES:
                return guess if self.low == 0 or self._scales_to(guess) else self.low
            self._add(guess if guess > self.low else self.low + 1)
        return self.low

    def log(self, batch: int) -> MemoryLog:
        """Return the log of a batch: traced, else scaled from the traces next to it that are of the same events."""
        if batch in self.logs:
            return self.logs[batch]
        near = self._near(batch)
        alike = [one for one in near if scales(self.logs[near[0]], self.logs[one])]
        return self._through(self._simplest(alike), batch)

    def _add(self, batch: int) -> None:
        log = self.logs[batch] = self._trace(batch)
        if self._fits(log):
            self.low = max(self.low, batch)
        else:
            self.high = min(self.high, batch)

    def _guess(self) -> int:
        """The largest batch that is foretold to fit, of those between what is known to fit and what is known not to."""
        if self.low == 0:
            return 1
        fits = cache(lambda batch: self._fits(self.log(batch)) if self._scales_to(batch) else self._seems_to_fit(batch))
        return self.low + largest(lambda step: self.low + step < self.high and fits(self.low + step))

    def _near(self, batch: int) -> list[int]:
        """The traced batches, from the one on that differs from a batch by the smallest factor."""
        return sorted(self.logs, key=lambda one: max(one, batch) / min(one, batch))

    def _scales_to(self, batch: int) -> bool:
        """Whether two traces at least foretell the events of a batch."""
        first, *others = (self.logs[one] for one in self._near(batch))
        return any(scales(first, other) for other in others)

    def _simplest(self, near: list[int]) -> list[int]:
        """Of batches from the nearest on, those to go by: a line or a square that foretells one more, else the nearest.

        Two traces are all that a kink leaves; three that are on no line are taken for a square.
        """
        for count in (2, 3):
            points = near[:count]
            if len(near) > count and self._through(points, near[count]).events == self.logs[near[count]].events:
                return points
        return near[:3] if len(near) == 3 else near[:2]

    def _through(self, batches: list[int], batch: int) -> MemoryLog:
        return at_batch({one: self.logs[one] for one in batches}, batch)

    def _seems_to_fit(self, batch: int) -> bool:
        """Whether the line through the peaks of the two traces next to a batch leaves it anything."""
        first, second = self._near(batch)[:2]
        there, beyond = (self._spare(self.logs[one]) for one in (first, second))
        return there + (beyond - there) * (batch - first) // (second - first) >= 0


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number for which ``fits`` holds, by doubling and then halving; 0 where 1 does not fit.

    >>> largest(lambda number: number <= 37)
    37
    """
    if not fits(1):
        return 0
    high = 2
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
