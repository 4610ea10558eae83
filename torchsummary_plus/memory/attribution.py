"""A memory log replayed: the peak, what it is made of, who holds it, and the level at every moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil

from ..data.memory_records import KINDS, SOME_KINDS, MemoryLog, StorageSpec
from .allocator import CachingAllocator, CpuAllocator
from .allocator_options import AllocatorOptions

Allocator = CachingAllocator | CpuAllocator


def new_allocator(backend: str, options: AllocatorOptions | None, limit: int | None = None) -> Allocator:
    """The allocator of a backend, empty."""
    return CachingAllocator(options, limit) if backend == "cuda" else CpuAllocator(limit)


def allocator_for(log: MemoryLog, backend: str, options: AllocatorOptions | None) -> Allocator:
    """An empty allocator whose blocks are those of the log: where it is in blocks, they are as large as they stand."""
    return CpuAllocator() if log.in_blocks else new_allocator(backend, options)


def give_back(allocator: Allocator, log: MemoryLog, storage: int) -> None:
    """Free a storage, and empty the allocator's cache where that goes with it."""
    allocator.free(storage)
    if log.storages[storage].empties and isinstance(allocator, CachingAllocator):
        allocator.empty_cache()


def lifetimes(log: MemoryLog) -> tuple[list[int], list[int]]:
    """For each storage the event that makes it and the one that frees it; -1 where there is none."""
    born, died = [-1] * len(log.storages), [-1] * len(log.storages)
    for event, (_, storage, nbytes) in enumerate(log.events):
        (born if nbytes else died)[storage] = event
    return born, died


def storage_kinds(log: MemoryLog) -> tuple[str, ...]:
    """What each storage is for, over its whole life: as it was told, else by when it lives.

    What is made before a backward that still finds it was kept for it: a saved activation. The rest is temporary.
    """
    backwards = list(accumulate(moment.phase == "backward" for moment in log.moments))
    born, died = lifetimes(log)

    def kind(number: int) -> str:
        told = log.storages[number].kind
        if told is not None or born[number] < 0:
            return told or "temporaries"
        first = log.events[born[number]][0]
        last = -1 if died[number] < 0 else log.events[died[number]][0]
        met_by_backward = log.moments[first].phase in ("forward", "end") and backwards[last] > backwards[first]
        return "saved_activations" if met_by_backward else "temporaries"

    return tuple(map(kind, range(len(log.storages))))


def kinds_of(log: MemoryLog) -> tuple[str, ...]:
    """The kinds that a log tells of: those of any step, and others as far as they are there."""
    told = {storage.kind for storage in log.storages}
    return (*KINDS, *(kind for kind in SOME_KINDS if kind in told))


@dataclass(frozen=True, slots=True)
class Replayed:
    """A log run through an allocator: its peaks, and the sizes of the blocks that were live at the first one."""

    peak_bytes: int
    peak_moment: int
    at_peak: dict[int, int]
    peak_reserved_bytes: int
    final_bytes: int
    phase_peaks: tuple[tuple[str, int], ...]


def run_log(log: MemoryLog, backend: str, options: AllocatorOptions | None = None) -> Replayed:
    """Replay a log; sizes are those of the allocator's blocks, so that they add up to its peak."""
    allocator = allocator_for(log, backend, options)
    peak, at, event_at_peak = 0, 0, -1
    phases: dict[str, int] = {}
    for index, (moment, storage, nbytes) in enumerate(log.events):
        if not nbytes:
            give_back(allocator, log, storage)
            continue
        allocator.allocate(storage, nbytes, log.stream(storage))
        now = allocator.allocated_bytes
        phase = log.moments[moment].phase
        phases[phase] = max(phases.get(phase, 0), now)
        if now > peak:
            peak, at, event_at_peak = now, moment, index
    return Replayed(
        peak_bytes=peak,
        peak_moment=at,
        at_peak=_live_after(log, event_at_peak, allocator_for(log, backend, options)),
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        final_bytes=allocator.allocated_bytes,
        phase_peaks=tuple(phases.items()),
    )


def at_edge(log: MemoryLog, sign: int) -> MemoryLog:
    """A log with all sizes at the upper edge (1) or the lower one (-1) of the error bands of the rules they are by.

    At the upper one operators without a rule hold the most that they may; at the lower one what is assumed is not
    there.
    """
    log = doubted(log) if sign > 0 else log
    change = [sign * ceil(storage.band * storage.nbytes) for storage in log.storages]
    there = [
        not storage.nbytes or (storage.nbytes + delta > 0 and not (storage.assumed and sign < 0))
        for storage, delta in zip(log.storages, change)
    ]
    events = ((moment, n, nbytes and nbytes + change[n]) for moment, n, nbytes in log.events if there[n])
    return replace(log, events=tuple(events))


def doubted(log: MemoryLog) -> MemoryLog:
    """A log in which each doubt is scratch memory; for its events alone, since calls are where they were."""
    events: list[tuple[int, int, int]] = []
    start = 0
    for number, doubt in enumerate(log.doubts, len(log.storages)):
        events += log.events[start : doubt.event]
        events += (doubt.moment, number, doubt.nbytes), (doubt.moment, number, 0)
        start = doubt.event
    storages = (StorageSpec(doubt.nbytes, "workspace", log.moments[doubt.moment].module) for doubt in log.doubts)
    return replace(log, events=(*events, *log.events[start:]), storages=(*log.storages, *storages), doubts=())


def _live_after(log: MemoryLog, event: int, allocator: Allocator) -> dict[int, int]:
    """The blocks that are live after an event, with their sizes, by a replay up to there."""
    live: dict[int, int] = {}
    for _, storage, nbytes in log.events[: event + 1]:
        before = allocator.allocated_bytes
        if nbytes:
            allocator.allocate(storage, nbytes, log.stream(storage))
            live[storage] = allocator.allocated_bytes - before
        else:
            give_back(allocator, log, storage)
            del live[storage]
    return live


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The live bytes by kind when an operator has run, with where that was."""

    operator: str
    module: str
    phase: str
    step: int
    live: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """Live bytes of all kinds."""
        return sum(nbytes for _, nbytes in self.live)


def timeline(log: MemoryLog, allocator: Allocator) -> Iterator[TimelinePoint]:
    """A point for each moment at which anything was allocated or freed: the highest level within it."""
    kinds = storage_kinds(log)
    live = dict.fromkeys(kinds_of(log), 0)
    sizes: dict[int, int] = {}
    present, highest, snapshot = 0, -1, dict(live)
    for moment, storage, nbytes in log.events:
        if moment != present:
            if highest >= 0:
                yield _point(log, present, snapshot)
            present, highest = moment, -1
        before = allocator.allocated_bytes
        if nbytes:
            allocator.allocate(storage, nbytes, log.stream(storage))
            sizes[storage] = allocator.allocated_bytes - before
            live[kinds[storage]] += sizes[storage]
        else:
            give_back(allocator, log, storage)
            live[kinds[storage]] -= sizes.pop(storage)
        if allocator.allocated_bytes > highest:
            highest, snapshot = allocator.allocated_bytes, dict(live)
    if highest >= 0:
        yield _point(log, present, snapshot)


def _point(log: MemoryLog, moment: int, live: dict[str, int]) -> TimelinePoint:
    where = log.moments[moment]
    return TimelinePoint(where.operator, path_of(log, where.module), where.phase, where.step, tuple(live.items()))


def path_of(log: MemoryLog, module: int) -> str:
    """The path of a module by its number; "" for the root and for none."""
    return log.module_paths[module] if module >= 0 else ""
