"""Compare real and predicted steps allocation by allocation: which blocks are live at only one of the two peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tests.truth.memory_truth import Change
from torchsummary_plus.data.memory_records import MemoryLog
from torchsummary_plus.watch.profiled import depth_of

MARK = "step "
"""Prefix of the name under which ``torch.profiler.record_function`` marks a real step; its number follows."""


def operator_of(change: Change) -> str:
    """Return the operator that made an allocation, or an empty string."""
    depth = depth_of(change.names)
    return "" if depth < 0 else change.names[depth]


def step_of(names: tuple[str, ...]) -> int:
    """Return the number of the marked step, or 0 if none is marked."""
    return next((int(name[len(MARK) :]) for name in names if name.startswith(MARK)), 0)


@dataclass(frozen=True)
class Level:
    """The peak of a step above its start, with the bytes and the operator of each block that is live then."""

    nbytes: int
    live: tuple[tuple[int, str], ...]


def measured_levels(changes: Iterable[Change], steps: int) -> list[Level]:
    """Return the peak of each real step."""
    blocks = ((step_of(change.names), change.address, max(0, change.nbytes), operator_of(change)) for change in changes)
    return _levels(blocks, steps)


def predicted_levels(log: MemoryLog, steps: int) -> list[Level]:
    """Return the peak of each predicted step, without parameters, buffers and inputs, which exist before it."""
    static = {n for n, spec in enumerate(log.storages) if spec.kind in ("parameters", "buffers", "inputs")}
    blocks = (
        (log.moments[moment].step, storage, nbytes, log.moments[moment].operator)
        for moment, storage, nbytes in log.events
        if storage not in static
    )
    return _levels(blocks, steps)


def _levels(blocks: Iterable[tuple[int, int, int, str]], steps: int) -> list[Level]:
    """Return the peaks by step, from allocations (step, key, bytes, operator) and frees (0 bytes)."""
    live: dict[int, tuple[int, str]] = {}
    level = 0
    peaks = [Level(0, ())] * steps
    for step, key, nbytes, maker in blocks:
        before = live.pop(key, (0, ""))[0]
        level -= before
        if nbytes:
            live[key] = nbytes, maker
            level += nbytes
        if level > peaks[step].nbytes:
            peaks[step] = Level(level, tuple(live.values()))
    return peaks


def difference(measured: Level, predicted: Level) -> dict[str, int]:
    """Return the bytes by operator that are live only at the predicted peak, and as negative only at the measured peak.

    Blocks of equal size match each other, those of the same operator first. The bytes add up to the error.
    """
    there, here = Counter(measured.live), Counter(predicted.live)
    there, here = there - here, here - there
    sizes = Counter[int]()
    for (nbytes, _), count in there.items():
        sizes[nbytes] += count
    nbytes_by_maker: Counter[str] = Counter()
    for (nbytes, maker), count in here.items():
        same = min(count, sizes[nbytes])
        sizes[nbytes] -= same
        nbytes_by_maker[_short(maker)] += nbytes * (count - same)
    for (nbytes, maker), count in there.items():
        missing = min(count, sizes[nbytes])
        sizes[nbytes] -= missing
        nbytes_by_maker[_short(maker)] -= nbytes * missing
    return {maker: nbytes for maker, nbytes in nbytes_by_maker.most_common() if nbytes}


def _short(maker: str) -> str:
    """Return an operator's name without its namespace and overload."""
    return maker.partition("::")[2].partition(".")[0] or maker or "outside operators"
