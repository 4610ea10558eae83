"""Compare real and predicted steps allocation by allocation: which blocks are live at only one of the two peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, groupby

from tests.truth.memory_truth import Change
from torchsummary_plus.data.memory_records import MemoryLog
from torchsummary_plus.watch.profiled import depth_of

MARK = "step "
"""Prefix of the name under which ``torch.profiler.record_function`` marks a real step; its number follows."""

Run = Callable[[], object]


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


NUMBER = 8
"""Bytes of a Python number as a tensor, which torch allocates outside the operator: spans may differ by these."""


@dataclass(frozen=True)
class Span:
    """One run of an operator: its peak above the start, and the bytes that remain."""

    operator: str
    peak_bytes: int
    kept_bytes: int

    def is_like(self, other: Span) -> bool:
        """Return whether two spans have the same peak and remainder, except for a Python number."""
        return abs(self.peak_bytes - other.peak_bytes) <= NUMBER and self.kept_bytes == other.kept_bytes


def measured_spans(changes: Iterable[Change]) -> Iterator[Span]:
    """Yield the operators of a real run that allocate."""
    inside = (change for change in changes if depth_of(change.names) >= 0)
    for _, group in groupby(inside, lambda change: change.calls[depth_of(change.names)]):
        own = list(group)
        levels = list(accumulate(change.nbytes for change in own))
        if max(levels) > 0:
            yield Span(_short(operator_of(own[0])), max(levels), levels[-1])


def predicted_spans(log: MemoryLog) -> Iterator[Span]:
    """Yield the operators of a predicted run that allocate."""
    for moment, group in groupby(log.events, lambda event: event[0]):
        taken: dict[int, int] = {}
        levels = [0]
        for _, storage, nbytes in group:
            if nbytes:
                taken[storage] = nbytes
                levels.append(levels[-1] + nbytes)
            elif log.storages[storage].kind == "workspace":
                levels.append(levels[-1] - taken.pop(storage, 0))
        if max(levels) and log.moments[moment].operator:
            yield Span(_short(log.moments[moment].operator), max(levels), levels[-1])


def divergences(measured: list[Span], predicted: list[Span]) -> Iterator[tuple[str, Span | None, Span | None]]:
    """Yield where two runs differ, in order: the operator, and its span in each run.

    An operator in only one run is omitted if the other run has an operator of another name with the same span.
    """
    names = [span.operator for span in measured], [span.operator for span in predicted]
    for tag, a, b, c, d in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        if tag == "equal":
            for real, expected in zip(measured[a:b], predicted[c:d]):
                if not real.is_like(expected):
                    yield real.operator, real, expected
            continue
        left = predicted[c:d]
        for real in measured[a:b]:
            twin = next((other for other in left if real.is_like(other)), None)
            if twin is None:
                yield real.operator, real, None
            else:
                left.remove(twin)
        yield from ((span.operator, None, span) for span in left)
