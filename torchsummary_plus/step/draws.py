"""Random numbers that decide what a step runs, as LayerDrop's do: the step is recorded again with other draws."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean, stdev

from ..data.errors import SummaryError
from ..data.memory_records import MemoryLog
from ..live import own_random
from ..table.attempts import NeedsIntegerError
from ..table.growing import GrewError
from ..trace.global_state import global_state_kept
from ..trace.questions import Answers

OTHER_SEEDS = 7_919, 104_729
"""Seeds of the other draws recorded where random numbers may decide what runs."""

STUDENT = {2: 12.71, 3: 4.30}
"""Student's t for 95 % on both sides, by the number of draws."""


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


def with_other_draws(log: MemoryLog, draws: Draws, record: Callable[[Draws], MemoryLog], redrawn: bool) -> MemoryLog:
    """Return a log with those of other draws, if any of them allocates other bytes.

    ``record`` records the same step with the given draws; ``redrawn`` tells whether its real pass draws too. If the
    draws ask for the highest, its events replace the log's own.
    """
    if not (draws.asks or draws.foreign or redrawn):
        return log
    others: list[MemoryLog] = []
    for seed in OTHER_SEEDS:
        with suppress(SummaryError, GrewError, NeedsIntegerError):
            others.append(record(Draws(seed)))
    if all(_sizes(other) == _sizes(log) for other in others):
        note = f"random numbers may decide what runs: {len(others) + 1} draws allocated the same memory"
        return replace(log, assumptions=(*log.assumptions, note)) if draws.asks else log
    if draws.highest:
        note = f"random numbers decide what runs: the highest peak of {len(others) + 1} draws; others may exceed it"
        return replace(max((log, *others), key=_peak), others=log.others, assumptions=(*log.assumptions, note))
    note = f"random numbers decide what runs: the range is where 95 % of draws lie, judged by {len(others) + 1} of them"
    spread = _spread([*map(_peak, others), _peak(log)])
    return replace(log, others=(*log.others, *others), assumptions=(*log.assumptions, note), spread=spread)


def _spread(peaks: list[int]) -> tuple[int, int]:
    """Return by how much the prediction interval of another draw exceeds the lowest and highest of some peaks.

    That of n normal draws is their mean with t * deviation * sqrt(1 + 1/n) on each side.
    """
    reach = STUDENT[len(peaks)] * stdev(peaks) * sqrt(1 + 1 / len(peaks))
    return max(0, int(min(peaks) - mean(peaks) + reach)), max(0, int(mean(peaks) + reach - max(peaks)))


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
