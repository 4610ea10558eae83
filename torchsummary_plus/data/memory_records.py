"""What a step did to memory, as plain frozen data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress

KINDS = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer_state",
    "inputs",
    "saved_activations",
    "temporaries",
    "workspace",
)
"""What bytes are for; at any moment those of all kinds add up to the live ones."""

UNSHARDED, ALL_GATHER, REDUCE_SCATTER, BUCKETS = (
    "unsharded_parameters",
    "all_gather_buffers",
    "reduce_scatter_buffers",
    "buckets",
)
RANK_KINDS = (UNSHARDED, ALL_GATHER, REDUCE_SCATTER, BUCKETS)
"""What they are for beside that in a step of one rank of many: whole weights, and what collectives fill and send."""
KV_CACHE = "kv_cache"
"""What inference keeps of the tokens it has read: keys and values, or the states of a recurrent model."""
SOME_KINDS = (KV_CACHE, *RANK_KINDS)
"""Kinds that only some steps have; an estimate names them where they are."""
ALL_KINDS = (*KINDS, *SOME_KINDS)


SUMMED = 'no loss was given: the sum of the output stands in for it; loss="cross_entropy", say, takes more'
"""What is assumed of a training step without a loss, whose output has none."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An operator of a step: its name, the number of the module it works for (-1: none), the phase and the step."""

    operator: str
    module: int
    phase: str
    step: int


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """A storage: its bytes, its kind where it was told, and the number of the module that owns it (-1: none).

    Of scratch memory that its kernel can spare, ``lesser`` are the sizes that it does with instead where there is no
    memory left, each less than those before; 0 where it does without in the end. ``band`` is the largest relative
    error that was seen of the rule which gave the bytes; 0 where it is exact. One that is ``assumed`` may as well not
    be there: what it is for has been assumed to happen. When one that ``empties`` is freed, torch gives back to the
    device what its allocator keeps.
    """

    nbytes: int
    kind: str | None
    owner: int
    lesser: tuple[int, ...] = ()
    band: float = 0.0
    assumed: bool = False
    empties: bool = False


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of a module in a forward: ``events[start:stop]`` happened while it ran.

    ``outer`` is the position of the call around it (-1: none), ``outputs`` are the storages of what it returned.
    """

    module: int
    step: int
    outer: int
    start: int
    stop: int
    outputs: tuple[int, ...]


def returned(calls: Sequence[ModuleCall]) -> tuple[ModuleCall, ...]:
    """The calls that returned; one around them that did not (an exception left it: its ``stop`` is -1) stands for none.

    >>> left, inner = ModuleCall(0, 0, -1, 0, -1, ()), ModuleCall(1, 0, 0, 2, 5, ())
    >>> returned([left, inner]) == (ModuleCall(1, 0, -1, 2, 5, ()),)
    True
    """
    place = {-1: -1}
    kept: list[ModuleCall] = []
    for number, call in enumerate(calls):
        place[number] = -1 if call.stop < 0 else len(kept)
        if call.stop >= 0:
            kept.append(replace(call, outer=place[call.outer]))
    return tuple(kept)


LEAST_DOUBT = 4096
"""Bytes by which a step with an operator that no rule models is uncertain at least: its work on small operands."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An operator that may hold up to ``nbytes`` more than the log says, just before ``events[event]``."""

    event: int
    moment: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryLog:
    """All allocations and frees of a step in their order.

    An event is ``(moment, storage, nbytes)`` with 0 bytes for a free; moments and storages are numbered as they stand
    in ``moments`` and ``storages``. ``calls`` are those of modules, in the order they began, as far as they returned.
    ``unknown`` are operators whose scratch memory no rule models, each call with one of the ``doubts``; ``assumptions``
    what was taken for values that only data tell; ``others`` are the logs with other answers there. ``in_blocks``: an
    allocator has rounded the events' bytes already. ``streams`` are those that storages were allocated in, () where all
    were in the default one; ``communicators`` is how many groups of processes a rank sent to.
    """

    moments: tuple[Moment, ...]
    events: tuple[tuple[int, int, int], ...]
    storages: tuple[StorageSpec, ...]
    module_paths: tuple[str, ...]
    calls: tuple[ModuleCall, ...] = ()
    unknown: tuple[tuple[str, int], ...] = ()
    assumptions: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    in_blocks: bool = False
    others: tuple[MemoryLog, ...] = ()
    streams: tuple[int, ...] = ()
    communicators: int = 0
    mult_adds: tuple[tuple[str, int], ...] | None = None
    """Multiply-adds of the last step by phase; None where they were not counted."""
    uncounted: tuple[tuple[str, int], ...] = ()
    """Operators of the last step without a formula for multiply-adds, and how often each ran."""

    def stream(self, storage: int) -> int:
        """The stream that a storage was allocated in; 0 is the default one."""
        return self.streams[storage] if storage < len(self.streams) else 0


def there_from_the_start(log: MemoryLog, given: Collection[int]) -> MemoryLog:
    """A log in which some storages that are never freed are there before the first step, whenever they were made."""
    if not given:
        return log
    moved = tuple((0, storage, nbytes) for _, storage, nbytes in log.events if storage in given)
    kept = [storage not in given for _, storage, _ in log.events]
    before = list(accumulate(kept, initial=len(moved)))
    calls = tuple(replace(call, start=before[call.start], stop=before[call.stop]) for call in log.calls)
    doubts = tuple(replace(doubt, event=before[doubt.event]) for doubt in log.doubts)
    events = list(compress(log.events, kept))
    first = next(place for place, event in enumerate(events) if log.moments[event[0]].phase != "setup")
    return replace(log, events=(*events[:first], *moved, *events[first:]), calls=calls, doubts=doubts)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The step an estimate is of, in words: the device's name, the batch, the mode, and what was asked beside.

    ``gpu`` is the card that was named, ``dtype`` that of the parameters, ``loss`` what was minimised, ``train_step``
    the name of the user's own. What there is none of is "". ``measured`` is True of one that was run for
    real. ``world_size`` is 0 but for the step of one ``rank`` of many, which may be the worst of so many ``ranks``.
    """

    device: str
    batch_size: int
    mode: str
    optimizer: str = ""
    autocast: str = ""
    gpu: str = ""
    measured: bool = False
    dtype: str = ""
    loss: str = ""
    train_step: str = ""
    world_size: int = 0
    rank: int = 0
    ranks: int = 0

    @property
    def settings(self) -> str:
        """What the figures depend on beside the batch: the card or other device, optimizer, numbers, loss."""
        trains = self.mode == "train" and not self.train_step
        parts = [
            self.gpu or self.device,
            (self.optimizer or "no optimizer") if trains else self.train_step,
            f"autocast to {self.autocast}" if self.autocast else self.dtype,
            f"loss: {self.loss}" if self.loss else "",
            f"rank {self.rank} of {self.world_size}" if self.world_size else "",
            f"the worst of {self.ranks}" if self.ranks > 1 else "",
        ]
        return ", ".join(part for part in parts if part)

    def __str__(self) -> str:
        step = "Training step" if self.mode == "train" else "Inference step"
        measured = ", measured" if self.measured else ""
        step = "Generation" if self.mode == "generate" else step
        return f"{step}, batch of {self.batch_size:,}, {self.settings}{measured}"


@dataclass(frozen=True, slots=True)
class RowMemory:
    """What a row of a table adds to memory, in bytes: kept for the backward, gradients, optimizer state.

    These three add up over the rows. ``peak_bytes`` is all that is live when the call returns; None without a call.
    """

    saved_bytes: int = 0
    grad_bytes: int = 0
    optimizer_bytes: int = 0
    peak_bytes: int | None = None

    @property
    def any(self) -> bool:
        """Whether it adds anything."""
        return bool(self.saved_bytes or self.grad_bytes or self.optimizer_bytes)

    def __add__(self, other: RowMemory) -> RowMemory:
        return RowMemory(
            self.saved_bytes + other.saved_bytes,
            self.grad_bytes + other.grad_bytes,
            self.optimizer_bytes + other.optimizer_bytes,
            self.peak_bytes,
        )
