"""Compare real and predicted steps allocation by allocation: what only one of them holds at its peak."""

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
"""A real step is marked by this and its number, by ``torch.profiler.record_function``."""

Run = Callable[[], object]


def operator_of(change: Change) -> str:
    """The operator that made an allocation; "" for none."""
    depth = depth_of(change.names)
    return "" if depth < 0 else change.names[depth]


def step_of(names: tuple[str, ...]) -> int:
    """The number of the marked step; that of the first one before it."""
    return next((int(name[len(MARK) :]) for name in names if name.startswith(MARK)), 0)


@dataclass(frozen=True)
class Level:
    """The peak of a step above what was there before, and the bytes and the maker of each block that is live then."""

    nbytes: int
    live: tuple[tuple[int, str], ...]


def measured_levels(changes: Iterable[Change], steps: int) -> list[Level]:
    """The peak of each real step."""
    blocks = ((step_of(change.names), change.address, max(0, change.nbytes), operator_of(change)) for change in changes)
    return _levels(blocks, steps)


def predicted_levels(log: MemoryLog, steps: int) -> list[Level]:
    """The peak of each predicted step, without parameters, buffers and inputs, which are there before."""
    static = {n for n, spec in enumerate(log.storages) if spec.kind in ("parameters", "buffers", "inputs")}
    blocks = (
        (log.moments[moment].step, storage, nbytes, log.moments[moment].operator)
        for moment, storage, nbytes in log.events
        if storage not in static
    )
    return _levels(blocks, steps)


def _levels(blocks: Iterable[tuple[int, int, int, str]], steps: int) -> list[Level]:
    """Peaks by step of blocks that are taken (step, key, bytes, maker) and given back (0 bytes)."""
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
    """Bytes by operator that are live at the predicted peak and not at the measured one, which have a minus.

    Blocks of equal sizes are the same ones, first those of one maker, then any. The bytes add up to the error.
    """
    there, here = Counter(measured.live), Counter(predicted.live)
    there, here = there - here, here - there
    sizes = Counter[int]()
    for (nbytes, _), count in there.items():
        sizes[nbytes] += count
    found: Counter[str] = Counter()
    for (nbytes, maker), count in here.items():
        same = min(count, sizes[nbytes])
        sizes[nbytes] -= same
        found[_short(maker)] += nbytes * (count - same)
    for (nbytes, maker), count in there.items():
        missing = min(count, sizes[nbytes])
        sizes[nbytes] -= missing
        found[_short(maker)] -= nbytes * missing
    return {maker: nbytes for maker, nbytes in found.most_common() if nbytes}


def _short(maker: str) -> str:
    """An operator without its namespace and overload."""
    return maker.partition("::")[2].partition(".")[0] or maker or "outside operators"


NUMBER = 8
"""Bytes of a Python number as a tensor, which torch makes outside the operator: spans may differ by so much."""


@dataclass(frozen=True)
class Span:
    """One operator's run: the most it held above its start, and what it left."""

    operator: str
    peak_bytes: int
    kept_bytes: int

    def is_like(self, other: Span) -> bool:
        """Whether two spans hold and leave the same, but for a number."""
        return abs(self.peak_bytes - other.peak_bytes) <= NUMBER and self.kept_bytes == other.kept_bytes


def measured_spans(changes: Iterable[Change]) -> Iterator[Span]:
    """The operators of a real run that allocate."""
    inside = (change for change in changes if depth_of(change.names) >= 0)
    for _, group in groupby(inside, lambda change: change.calls[depth_of(change.names)]):
        own = list(group)
        levels = list(accumulate(change.nbytes for change in own))
        if max(levels) > 0:
            yield Span(_short(operator_of(own[0])), max(levels), levels[-1])


def predicted_spans(log: MemoryLog) -> Iterator[Span]:
    """The operators of a predicted run that allocate."""
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
    """Where the two runs part, in their order: the operator, and its span in each of them.

    An operator that only one of them has is left out where the other has one of another name that is like it.
    """
    names = [span.operator for span in measured], [span.operator for span in predicted]
    for tag, a, b, c, d in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        if tag == "equal":
            for one, other in zip(measured[a:b], predicted[c:d]):
                if not one.is_like(other):
                    yield one.operator, one, other
            continue
        left = predicted[c:d]
        for one in measured[a:b]:
            twin = next((other for other in left if one.is_like(other)), None)
            if twin is None:
                yield one.operator, one, None
            else:
                left.remove(twin)
        yield from ((span.operator, None, span) for span in left)
