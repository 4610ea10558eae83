"""Any batch from two traces: every event's bytes are a + c * batch, and the replay does the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..memory_records import MemoryLog
from ..units import mebibytes


@dataclass(frozen=True, slots=True)
class BatchSizeLimit:
    """The largest batch that fits, with its peak and the next one's, in bytes, and the module that holds most of it.

    Both peaks are without the scratch memory that kernels can spare where there is little left.
    ``batch_size`` is 0 where not even a batch of 1 fits; ``missing_bytes`` says by how much. ``scaled`` tells whether
    two traces were scaled, or each batch that was tried was traced.
    """

    batch_size: int
    peak_bytes: int
    next_peak_bytes: int
    held_by: str
    missing_bytes: int
    scaled: bool

    def __str__(self) -> str:
        if not self.batch_size:
            return f"Not even a batch of 1 fits: {mebibytes(self.missing_bytes)} MB are missing"
        return (
            f"Largest batch: {self.batch_size:,} (peak {mebibytes(self.peak_bytes)} MB; {self.batch_size + 1:,} would "
            f"take {mebibytes(self.next_peak_bytes)} MB); most is held by {self.held_by or 'the root'}"
        )


def scales(low: MemoryLog, high: MemoryLog) -> bool:
    """Whether two logs are of the same events, and differ in their bytes alone."""
    return (
        len(low.events) == len(high.events)
        and len(low.storages) == len(high.storages)
        and all(a[0] == b[0] and a[1] == b[1] and bool(a[2]) == bool(b[2]) for a, b in zip(low.events, high.events))
    )


def at_batch(low: MemoryLog, high: MemoryLog, batches: tuple[int, int], batch: int) -> MemoryLog:
    """The log of another batch, by the straight line through each event of two."""
    first, second = batches

    def line(a: int, b: int) -> int:
        return a + (b - a) * (batch - first) // (second - first)

    events = tuple((a[0], a[1], line(a[2], b[2])) for a, b in zip(low.events, high.events))
    storages = tuple(replace(a, nbytes=line(a.nbytes, b.nbytes)) for a, b in zip(low.storages, high.storages))
    return replace(low, events=events, storages=storages)


def largest(fits: Callable[[int], bool]) -> int:
    """The largest batch for which ``fits`` holds, by doubling and then halving; 0 where 1 does not fit.

    >>> largest(lambda batch: batch <= 37)
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
