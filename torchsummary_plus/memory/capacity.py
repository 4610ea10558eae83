"""The largest batch or context that fits: extrapolated from a few traces, and confirmed by tracing it and the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import lcm, prod
from operator import mul
from typing import Any

from ..data.answers import Printed, answer_lines, caveats
from ..data.errors import ForwardError, StepError
from ..data.memory_records import Kernel, MemoryLog, StepInfo
from ..data.units import in_common_unit, one_line, rate_text
from .estimate import IN_PIECES

LARGEST_BATCH = 1 << 24
"""Upper limit of the search."""

PATIENCE = 6
"""Traces after which a guess that did not fit is followed by the middle between the limits."""

NARROW = 0.001
"""The width of a range, as a share of the peak, up to which it is not told."""

NEAR = 0.005
"""How far from the largest batch a search that begins with another GPU's logs may end, as a share of it."""

FARTHEST = 64
"""Largest ratio of a guess to the largest fitting batch if the traces neither scale to it nor grow.

The peaks of small batches may be equal or even fall if the optimizer's state or a convolution's workspace dominates
them, and then do not predict large ones.
"""


@dataclass(frozen=True, slots=True, repr=False)
class BatchSizeLimit(Printed):
    """The largest batch that fits, its peak and the next one's in bytes, and what holds most of the peak.

    ``held_by`` is a module's path, ``OWN_FORWARD``, or ``NO_MODULE``, as in :attr:`Estimate.holders`.
    ``memory_bytes`` is the memory to fit in, ``memory`` the text it was requested by ("" for bytes), such as "RTX
    4090"; ``context_bytes`` of it are reserved for the CUDA context, an upper bound. ``info`` describes the step at
    that batch: its mode, dtypes, device, GPU, optimizer and loss.

    Both peaks exclude optional scratch memory, which kernels do without when memory is short. ``batch_size`` is 0 if
    the smallest batch that runs, 1 or 2, does not fit; ``missing_bytes`` says by how much. It is ``LARGEST_BATCH`` if
    that fits, and more may. ``traced`` lists the batches whose step was traced.

    ``samples_per_second`` is that of the step's time at that batch, None where it is not known.

    ``peak_range``, ``unknown`` and ``assumptions`` are those of the estimate at that batch. Where random numbers decide
    what runs, the peaks are the highest of several draws with fixed seeds, so that the limit holds for all of them.

    >>> from torch import nn
    >>> from torchsummary_plus import max_batch_size
    >>> limit = max_batch_size(nn.Linear(1024, 1024), (1024,), "1GiB", device="cpu", optimizer="sgd", progress=False)
    >>> limit.batch_size > 50_000, limit.peak_bytes <= limit.memory_bytes
    (True, True)
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
    peak_range: tuple[int, int]
    unknown: tuple[tuple[str, int], ...]
    assumptions: tuple[str, ...]
    samples_per_second: float | None = None

    @property
    def is_proved(self) -> bool:
        """Whether this batch and the next were traced rather than extrapolated."""
        return {self.info.batch_size, self.batch_size + 1 if self.batch_size else 0} - {0} <= set(self.traced)

    def __str__(self) -> str:
        within = "" if self.info.gpu else f", in {self.memory or in_common_unit(self.memory_bytes)}"
        usable = self.memory_bytes - self.context_bytes
        answer = f"{'more than ' if self.batch_size >= LARGEST_BATCH else ''}{self.batch_size:,}"
        figures = [
            (f"Peak at {self.batch_size:,}", peak_words(self.peak_bytes, usable, *self.peak_range)),
            (f"Peak at {self.batch_size + 1:,}", next_words(self.next_peak_bytes, usable)),
            ("Largest part", one_line(self.held_by)),
            *([("Samples per second", rate_text(self.samples_per_second))] if self.samples_per_second else []),
        ]
        if not self.batch_size:
            answer = f"none, a batch of {self.info.batch_size} needs {in_common_unit(self.missing_bytes)} more"
            figures = [("Usable", in_common_unit(usable))]
        step = f"{self.info.step}: {self.info.model}, {self.info.settings}{within}"
        return answer_lines(f"Largest batch: {answer}", step, figures, caveats(self.unknown, self.assumptions))


@dataclass(frozen=True, slots=True, repr=False)
class ContextLimit(Printed):
    """The longest context that fits (tokens of prompt and answer), its peak and that of one token more, in bytes.

    ``context`` is 0 if not even a prompt of one token fits, and ``LARGEST_BATCH`` if that many tokens fit, or more.
    ``position_limit`` is the longest context that the model supports (None if its configuration states none).
    ``traced`` lists the lengths of the prompts that were traced. ``cuda_context_bytes``, an upper bound, are the part
    of ``memory_bytes`` that is reserved for the CUDA context. ``peak_range``, ``unknown`` and ``assumptions`` are those
    of the estimate at that context.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from torchsummary_plus import max_context
    >>> tokens = {"vocab_size": 9, "bos_token_id": 0, "eos_token_id": 1}
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=64, **tokens))
    >>> limit = max_context(model, "8GiB", progress=False)
    >>> limit.is_beyond_positions, limit.peak_bytes <= limit.memory_bytes
    (True, True)
    """

    context: int
    batch_size: int
    new_tokens: int
    peak_bytes: int
    next_peak_bytes: int
    position_limit: int | None
    traced: tuple[int, ...]
    memory_bytes: int
    cuda_context_bytes: int
    info: StepInfo
    peak_range: tuple[int, int]
    unknown: tuple[tuple[str, int], ...]
    assumptions: tuple[str, ...]

    @property
    def is_beyond_positions(self) -> bool:
        """Whether more tokens fit than the model supports."""
        return self.position_limit is not None and self.context > self.position_limit

    def __str__(self) -> str:
        beyond = f" (the model supports {self.position_limit:,})" if self.is_beyond_positions else ""
        usable = self.memory_bytes - self.cuda_context_bytes
        figures = [
            (f"Peak at {self.context:,}", peak_words(self.peak_bytes, usable, *self.peak_range)),
            ("Peak at one more", next_words(self.next_peak_bytes, usable)),
        ]
        return answer_lines(
            f"Longest context: {self.context:,} tokens{beyond} with a batch of {self.batch_size:,}",
            f"{self.info.step}: {self.info.model}, {self.info.settings}",
            figures,
            caveats(self.unknown, self.assumptions),
        )


def peak_words(peak: int, usable: int, least: int, most: int) -> str:
    """Return a peak of the usable bytes, and its range unless that is narrow, in words."""
    is_wide = most - least > NARROW * peak
    ends = f", between {in_common_unit(least)} and {in_common_unit(most)}" if is_wide else ""
    return f"{in_common_unit(peak, usable)} usable{ends}"


def next_words(peak: int, usable: int) -> str:
    """Return the next larger peak, and why it does not fit although it is below the limit, in words."""
    if peak <= usable:
        return f"{in_common_unit(peak)}, but {IN_PIECES}"
    return f"{in_common_unit(peak)}, {in_common_unit(peak - usable)} too much"


Trace = Callable[[int], MemoryLog]
Fits = Callable[[MemoryLog], bool]
Spare = Callable[[MemoryLog], int]


class Search:
    """Searches for the largest batch whose log fits.

    ``trace`` returns a batch's log, ``fits`` whether a log fits, ``spare`` the bytes that its peak leaves free. The
    first batches are ``start`` and the next one; where ``shared`` has logs of the same step for another GPU they are
    guessed, and a batch is enough that fits and is within ``NEAR`` of the largest one predicted.
    """

    def __init__(
        self, trace: Trace, fits: Fits, spare: Spare, start: int = 2, shared: Mapping[int, MemoryLog] | None = None
    ) -> None:
        self._first = [] if shared else [start, start + 1]
        self._tolerance = NEAR if shared else 0.0
        self._trace = trace
        self._fits = fits
        self._spare = cache(lambda batch: spare(self.logs[batch]))
        """The bytes that the peak of a batch leaves free."""
        self.logs = dict(shared or {})
        """The logs by batch, shared or traced."""
        self._fitting = {batch: fits(log) for batch, log in self.logs.items()}
        self._traced: list[int] = []
        self.smallest = 1
        """The smallest batch that runs: batch normalisation, for one, may need two values."""

    def run(self) -> int:
        """Return the largest batch that fits, 0 if the smallest that runs does not; it and the next one are traced.

        Two small traces give a first guess. The guess and the batch after it are traced, which improves the next guess.
        """
        for batch in self._first:
            if batch < self.high:
                self._add(batch)
        halves = False  # Whether the last trace halved the interval between the limits.
        while True:
            guess, is_traced = self._guess(), self.low in {0, *self._traced}
            is_near = self._tolerance > 0 and guess <= (1 + self._tolerance) * self.low
            if is_traced and (is_near or self.high - self.low <= 1):
                return self.low
            if self._traced:  # Kernels or the allocator may have disappointed a guess from shared logs.
                guess -= int(self._tolerance * guess)
            guess = max(guess, self.low + is_traced)
            is_late = len(self._traced) >= PATIENCE
            halves = is_late and not halves and self._traced[-1] == self.high
            self._add((self.low + self.high) // 2 if halves or (is_late and not self._scales_to(guess)) else guess)

    @property
    def high(self) -> int:
        """The smallest batch known not to fit."""
        return min((batch for batch, fits in self._fitting.items() if not fits), default=LARGEST_BATCH + 1)

    @property
    def low(self) -> int:
        """The largest batch below it that is known to fit."""
        return max((batch for batch, fits in self._fitting.items() if fits and batch < self.high), default=0)

    def log(self, batch: int) -> MemoryLog:
        """Return a batch's log: traced, or extrapolated from the nearest traces with the same events.

        Three traces are taken for a parabola. Of more, which may lie around a kink, only two are used.
        """
        if batch in self.logs:
            return self.logs[batch]
        near = self._near(batch)
        alike = [traced for traced in near if scales(self.logs[near[0]], self.logs[traced])]
        count = 3 if len(alike) == 3 else 2
        return at_batch({traced: self.logs[traced] for traced in alike[:count]}, batch)

    def _add(self, batch: int) -> None:
        try:
            self.logs[batch] = self._trace(batch)
        except (ForwardError, StepError):
            if batch > 1 or not self.logs:
                raise
            self.smallest = 2
        self._spare.cache_clear()
        self._traced.append(batch)
        self._fitting[batch] = batch >= self.smallest and self._fits(self.logs[batch])

    def _guess(self) -> int:
        """Return the largest batch predicted to fit, of shared logs near where the line through two peaks ends."""
        if self.high - self.low <= 1:
            return self.low
        if self.low == 0:
            return self.smallest
        start = self.low
        if self._tolerance:
            first, second = self._near(start)[:2]
            grows = (self._spare(first) - self._spare(second)) / (second - first)
            start = min(max(start + int(self._spare(start) / grows), start), self.high - 1) if grows > 0 else start

        @cache
        def fits(batch: int) -> bool:
            return self.low >= batch or (batch < self.high and self._predicts_fit(batch))

        if fits(start):  # Found in growing steps from there.
            return start + largest(lambda step: fits(start + step))
        return start - 1 - largest(lambda step: not fits(start - step))

    def _near(self, batch: int) -> list[int]:
        """Return the traced batches, nearest by ratio first."""
        return sorted(self.logs, key=lambda traced: max(traced, batch) / min(traced, batch))

    def _scales_to(self, batch: int) -> bool:
        """Whether the trace nearest to a batch has the same events as another, so that both extrapolate."""
        first, *others = (self.logs[traced] for traced in self._near(batch))
        return any(scales(first, other) for other in others)

    def _predicts_fit(self, batch: int) -> bool:
        """Whether the log of a batch fits, else whether the line through two peaks leaves memory at it."""
        if self._scales_to(batch):
            return self._fits(self.log(batch))
        first, second = self._near(batch)[:2]
        spare_first, spare_second = self._spare(first), self._spare(second)
        grows = (spare_second - spare_first) * (second - first) < 0
        if not grows and batch > FARTHEST * self.low:
            return False
        return spare_first + (spare_second - spare_first) * (batch - first) // (second - first) >= 0


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number for which ``fits`` holds, by doubling, then bisection; 0 if 1 does not fit.

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


def scales(low: MemoryLog, high: MemoryLog) -> bool:
    """Whether two logs have the same events and differ only in bytes."""
    return (
        len(low.events) == len(high.events)
        and len(low.storages) == len(high.storages)
        and len(low.doubts) == len(high.doubts)
        and all(a[0] == b[0] and a[1] == b[1] and bool(a[2]) == bool(b[2]) for a, b in zip(low.events, high.events))
    )


def at_batch(logs: Mapping[int, MemoryLog], batch: int) -> MemoryLog:
    """Return the log of another batch, from logs by batch, by interpolating each event with a polynomial.

    Its logs under other assumptions are those that scale in all of them.
    """
    first, *_ = logs.values()
    above = [prod(batch - other for other in logs if other != node) for node in logs]
    below = [prod(node - other for other in logs if other != node) for node in logs]
    over = lcm(*below)
    weights = [high * (over // low) for high, low in zip(above, below)]  # Lagrange's, over a common denominator.

    def through(sizes: tuple[int, ...]) -> int:
        if sizes.count(sizes[0]) == len(sizes):
            return sizes[0]
        weighted: int = sum(map(mul, weights, sizes))
        return max(1, weighted // over)

    def rows(name: str) -> Iterator[tuple[Any, ...]]:
        return zip(*(getattr(log, name) or () for log in logs.values()))

    sizes = zip(*([nbytes for _, _, nbytes in log.events] for log in logs.values()))
    storages, kernels = [], []
    for row in rows("storages"):
        storage, nbytes = row[0], through(tuple([each.nbytes for each in row]))
        if nbytes != storage.nbytes or storage.lesser:
            fewest_first = zip(*(reversed(each.lesser) for each in row))  # As many as every log has.
            lesser = tuple(reversed([through(each) for each in fewest_first]))
            storage = replace(storage, nbytes=nbytes, lesser=lesser)
        storages.append(storage)
    for row in rows("kernels"):
        kernel, numbers = row[0], [each.numbers for each in row]
        if numbers.count(numbers[0]) < len(numbers):
            kernel = Kernel(kernel.moment, kernel.kind, kernel.dtype, *map(through, zip(*numbers)))
        kernels.append(kernel)
    counts = tuple((row[0][0], through(tuple(count for _, count in row))) for row in rows("mult_adds"))
    others = (row for row in rows("others") if all(scales(row[0], other) for other in row[1:]))
    return replace(
        first,
        events=tuple([(moment, storage, through(row)) for (moment, storage, _), row in zip(first.events, sizes)]),
        storages=tuple(storages),
        doubts=tuple(replace(row[0], nbytes=through(tuple(each.nbytes for each in row))) for row in rows("doubts")),
        mult_adds=None if first.mult_adds is None else counts,
        others=tuple(at_batch(dict(zip(logs, row)), batch) for row in others),
        kernels=tuple(kernels),
    )
