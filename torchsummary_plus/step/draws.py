"""Random numbers that decide what a step runs, as LayerDrop's do: the step is recorded again with other draws."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import sqrt
from statistics import mean, stdev

from ..data.errors import SummaryError
from ..data.memory_records import MemoryLog
from ..live import own_random
from ..trace.embeddings import NeedsIntegerError
from ..trace.global_state import global_state_kept
from ..trace.growing import GrewError
from ..trace.questions import Answers

LEAST_DRAWS, FEW_DRAWS, MOST_DRAWS = 2, 20, 38
"""Other draws recorded where random numbers decide. After n of them and the first, the next lies between the lowest and
the highest with a probability of 1 - 2 / (n + 2), as each of n + 2 alike draws may be one of the two ends: 95 % after
38. After few, the range is wider: see :func:`_spread`.
"""

MOST_EVENTS = 40_000, 200_000
"""Allocations and frees recorded in all draws, if more than 8 and than ``LEAST_DRAWS``: long steps take no minutes."""

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t for 95 % on both sides, by degrees of freedom from 1 on."""

FIRST_DRAWS = 4
"""Draws that may decide nothing, as those of dropout: if all allocate the same, no more are recorded."""

MOST_REDRAWN = 5 * 10**10
"""Multiply-adds of all other real passes where values may depend on random numbers; one is always tried."""


@dataclass
class Draws:
    """Whether random numbers may determine what a step runs, and the step's seed (None: the caller's state).

    They do if the code ``asks`` for a drawn value, and may if it uses ``foreign`` generators: Python's or NumPy's, or
    those with which torch loads data.
    With ``highest`` the draw of the highest peak stands for the step, so that a limit holds for all of them.
    """

    seed: int | None = None
    highest: bool = False
    asks: bool = False
    foreign: bool = False

    def note(self, answers: Answers) -> None:
        """Note whether a pass asked for random values."""
        self.asks |= answers.drew
        self.foreign |= answers.loaded

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed the generators, and restore them."""
        with global_state_kept(), own_random.own_random():
            if self.seed is not None:
                _seed_all(self.seed)
            yield

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Seed the generators, which the caller restores, and note whether Python's or NumPy's were used."""
        if self.seed is not None:
            _seed_all(self.seed)
        before = _foreign_states()
        try:
            yield
        finally:
            self.foreign |= _foreign_states() != before


def with_other_draws(
    log: MemoryLog, draws: Draws, record: Callable[[Draws], MemoryLog], redrawn: int | None
) -> MemoryLog:
    """Return a log with those of the lowest and highest peak among other draws, if any allocates other bytes.

    ``record`` records the same step with the given draws. ``redrawn`` is the number of multiply-adds of its real pass
    if that draws too, else None. If the draws ask for the highest, its events replace the log's own.
    """
    if not draws.asks and not draws.foreign and redrawn is None:
        return log
    events = max(1, len(log.events))
    most = min(MOST_DRAWS, max(min(8, MOST_EVENTS[1] // events), MOST_EVENTS[0] // events, LEAST_DRAWS))
    logs = _recordings(record, most if redrawn is None else min(most, 1 + MOST_REDRAWN // max(1, redrawn)))
    others = list(islice(logs, None if draws.asks else FIRST_DRAWS))
    own = _sizes(log)
    if all(_sizes(other) == own for other in others):
        return log
    others.extend(logs)
    if draws.highest:
        note = f"random numbers decide what runs: the highest peak of {len(others) + 1} draws; others may exceed it"
        return replace(max((log, *others), key=_peak), others=log.others, assumptions=(*log.assumptions, note))
    ends = min(others, key=_peak), max(others, key=_peak)
    note = f"random numbers decide what runs: the range covers {len(others)} other draws, but not every possible one"
    spread = _spread([*map(_peak, others), _peak(log)])
    return replace(log, others=(*log.others, *ends), assumptions=(*log.assumptions, note), spread=spread)


def _spread(peaks: list[int]) -> tuple[int, int]:
    """Return by how much the prediction interval of another draw exceeds the lowest and highest of few peaks.

    That of n normal draws is their mean with t * deviation * sqrt(1 + 1/n) on each side.
    """
    count = len(peaks)
    if not 2 <= count <= FEW_DRAWS - 2:
        return 0, 0
    reach = STUDENT[count - 2] * stdev(peaks) * sqrt(1 + 1 / count)
    return max(0, int(min(peaks) - mean(peaks) + reach)), max(0, int(mean(peaks) + reach - max(peaks)))


def _recordings(record: Callable[[Draws], MemoryLog], draws: int) -> Iterator[MemoryLog]:
    for seed in range(1, draws + 1):
        with suppress(SummaryError, GrewError, NeedsIntegerError):
            yield record(Draws(seed))


def _sizes(log: MemoryLog) -> list[int]:
    """Return the bytes of every allocation in order, and 0 for a free.

    Draws that route tokens differently may still have equal peaks; the next may not.
    """
    return [nbytes for _, _, nbytes in log.events]


def _peak(log: MemoryLog) -> int:
    """Return the most bytes that are live at once, as requested."""
    live: dict[int, int] = {}
    level = highest = 0
    for _, storage, nbytes in log.events:
        level += nbytes - live.get(storage, 0)
        live[storage] = nbytes
        highest = max(highest, level)
    return highest


def _seed_all(seed: int) -> None:
    """Seed the generators of torch, Python and NumPy."""
    own_random.seed(seed)
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed)


def _foreign_states() -> tuple[object, ...]:
    """Return the states of the generators whose draws are not operators."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return (random.getstate(),)
    kind, keys, *place = numpy_random.get_state()
    return random.getstate(), kind, keys.tobytes(), *place
