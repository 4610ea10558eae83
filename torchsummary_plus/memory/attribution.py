"""Replay a memory log: the peak, its composition, the level at every moment, and what modules and calls contribute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, islice
from math import ceil
from operator import attrgetter, itemgetter
from typing import TypeVar

from ..data.memory_records import (
    HELD_FOR_GATHERS,
    KINDS,
    KV_CACHE,
    SOME_KINDS,
    UNSHARDED,
    MemoryLog,
    RowMemory,
    StorageSpec,
)
from .allocator import Allocator, AllocatorOptions, CachingAllocator, CpuAllocator


def new_allocator(backend: str, options: AllocatorOptions | None, limit: int | None = None) -> Allocator:
    """Return an empty allocator for a backend."""
    return CachingAllocator(options, limit) if backend == "cuda" else CpuAllocator(limit)


def allocator_for(log: MemoryLog, backend: str, options: AllocatorOptions | None) -> Allocator:
    """Return an empty allocator for the log; it rounds no sizes if the log's are already blocks."""
    return CpuAllocator() if log.in_blocks else new_allocator(backend, options)


def give_back(allocator: Allocator, log: MemoryLog, storage: int) -> None:
    """Free a storage, and empty the allocator's cache if the storage is marked so."""
    allocator.free(storage)
    if log.storages[storage].empties and isinstance(allocator, CachingAllocator):
        allocator.empty_cache()


def changes(log: MemoryLog, allocator: Allocator) -> Iterator[tuple[int, int, int]]:
    """Replay a log; yield each event's moment, its storage, and the bytes of the block, negative if it is freed."""
    for moment, storage, nbytes in log.events:
        before = allocator.allocated_bytes
        if nbytes:
            allocator.allocate(storage, nbytes, log.stream(storage))
        else:
            give_back(allocator, log, storage)
        yield moment, storage, allocator.allocated_bytes - before


def lifetimes(log: MemoryLog) -> tuple[list[int], list[int]]:
    """Return for each storage its allocating and its freeing event; -1 if there is none."""
    born, died = [-1] * len(log.storages), [-1] * len(log.storages)
    for event, (_, storage, nbytes) in enumerate(log.events):
        (born if nbytes else died)[storage] = event
    return born, died


def storage_kinds(log: MemoryLog) -> tuple[str, ...]:
    """Return each storage's kind over its whole life: the recorded one, else by its lifetime.

    A storage allocated before a backward and still live in it is a saved activation; any other is temporary.
    """
    backwards = list(accumulate([moment.phase == "backward" for moment in log.moments]))
    kinds = []
    for storage, birth, death in zip(log.storages, *lifetimes(log)):
        kind = storage.kind or "temporaries"
        if storage.kind is None and birth >= 0:
            first, last = log.events[birth][0], -1 if death < 0 else log.events[death][0]
            if log.moments[first].phase in ("forward", "end") and backwards[last] > backwards[first]:
                kind = "saved_activations"
        kinds.append(kind)
    return tuple(kinds)


def kinds_of(log: MemoryLog) -> tuple[str, ...]:
    """Return the kinds in a log: those of any step, and others that occur."""
    recorded = {storage.kind for storage in log.storages}
    return (*KINDS, *filter(recorded.__contains__, SOME_KINDS))


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replayed log: its peaks, and the sizes of the blocks live at the first peak."""

    peak_bytes: int
    peak_moment: int
    at_peak: dict[int, int]
    peak_reserved_bytes: int
    final_bytes: int
    phase_peaks: tuple[tuple[str, int], ...]


def replay(log: MemoryLog, backend: str, options: AllocatorOptions | None = None) -> Replayed:
    """Replay a log; sizes are the allocator's blocks, so that they add up to its peak."""
    allocator = allocator_for(log, backend, options)
    peak, at, event_at_peak = 0, 0, -1
    phases: dict[str, int] = {}
    changed = []
    for index, change in enumerate(changes(log, allocator)):
        moment, _, nbytes = change
        changed.append(change)
        if nbytes < 0:
            continue
        now = allocator.allocated_bytes
        phase = log.moments[moment].phase
        phases[phase] = max(phases.get(phase, 0), now)
        if now > peak:
            peak, at, event_at_peak = now, moment, index
    return Replayed(
        peak_bytes=peak,
        peak_moment=at,
        at_peak=_live_after(changed[: event_at_peak + 1]),
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        final_bytes=allocator.allocated_bytes,
        phase_peaks=tuple(phases.items()),
    )


GATHERS_AHEAD = 4
"""Groups that FSDP1 may gather before the memory of an earlier one can be used again.

``limit_all_gathers`` waits until the weights of the group before the last are free; gradients are reduced up to two
groups later (``_FreeEventQueue`` in torch/distributed/fsdp/_limiter_utils.py, ``_unshard`` in _runtime_utils.py).
"""


def held_back(log: MemoryLog) -> MemoryLog:
    """Delay the release of storages used on other streams; only the log's events are valid.

    They are kept to the end of the step, or for ``GATHERS_AHEAD`` if FSDP1 limits these. The allocator waits for the
    other stream before it runs out of memory, so what fits is not affected (``free`` and
    ``synchronize_and_free_events`` in c10/cuda/CUDACachingAllocator.cpp).
    """
    events: list[tuple[int, int, int]] = []
    freed: dict[int, tuple[int, tuple[int, int, int]]] = {}
    step = gathers = 0
    is_limited = HELD_FOR_GATHERS in log.assumptions
    for moment, storage, nbytes in log.events:
        spec = log.storages[storage]
        gathers += bool(nbytes) and spec.elsewhere and spec.kind == UNSHARDED
        is_over = log.moments[moment].step != step
        step = log.moments[moment].step
        while freed and (is_over or (is_limited and next(iter(freed.values()))[0] + GATHERS_AHEAD <= gathers)):
            events.append(freed.pop(next(iter(freed)))[1])
        if storage in freed:
            events.append(freed.pop(storage)[1])
        if not nbytes and spec.elsewhere:
            freed[storage] = gathers, (moment, storage, nbytes)
        else:
            events.append((moment, storage, nbytes))
    return replace(log, events=(*events, *(event for _, event in freed.values())), calls=(), doubts=())


def at_edge(log: MemoryLog, sign: int) -> MemoryLog:
    """Return a log with all sizes at the upper (1) or lower (-1) edge of their rules' error bands.

    At the upper edge, operators without a rule hold their bound (:func:`doubted`); at the lower edge, assumed storages
    are absent.
    """
    log = doubted(log) if sign > 0 else log
    change = [sign * ceil(storage.band * storage.nbytes) for storage in log.storages]
    occurs = [
        not storage.nbytes or (storage.nbytes + delta > 0 and not (storage.assumed and sign < 0))
        for storage, delta in zip(log.storages, change)
    ]
    events = ((moment, n, nbytes and nbytes + change[n]) for moment, n, nbytes in log.events if occurs[n])
    return replace(log, events=tuple(events))


def doubted(log: MemoryLog) -> MemoryLog:
    """Return a log with each doubt as scratch memory; only its events are valid, since calls are not shifted.

    The lasting part of the first doubt that has one, in the backward's thread and outside it, is never freed.
    """
    events: list[tuple[int, int, int]] = []
    added: list[StorageSpec] = []
    lasting: set[bool] = set()
    start = 0
    for doubt in log.doubts:
        moment = log.moments[doubt.moment]
        sizes = [doubt.nbytes]
        if doubt.lasting and (moment.phase == "backward") not in lasting:
            lasting.add(moment.phase == "backward")
            sizes = [doubt.nbytes - doubt.lasting, doubt.lasting]
        numbers = range(len(log.storages) + len(added), len(log.storages) + len(added) + len(sizes))
        added += (StorageSpec(nbytes, "workspace", moment.module) for nbytes in sizes)
        events += log.events[start : doubt.event]
        events += ((doubt.moment, number, nbytes) for number, nbytes in zip(numbers, sizes) if nbytes)
        if sizes[0]:
            events.append((doubt.moment, numbers[0], 0))
        start = doubt.event
    return replace(log, events=(*events, *log.events[start:]), storages=(*log.storages, *added), doubts=())


def _live_after(changed: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """Return the blocks live after changes, with their sizes."""
    live: dict[int, int] = {}
    for _, storage, nbytes in changed:
        if nbytes > 0:
            live[storage] = nbytes
        else:
            del live[storage]
    return live


def last_cache(log: MemoryLog, backend: str, options: AllocatorOptions | None) -> int:
    """Return the bytes of keys and values at the end of the last forward; 0 for a step without a cache."""
    if all(storage.kind != KV_CACHE for storage in log.storages):
        return 0
    end = max((call.stop for call in log.calls), default=0)
    live = _live_after(islice(changes(log, allocator_for(log, backend, options)), end))
    return sum(nbytes for storage, nbytes in live.items() if log.storages[storage].kind == KV_CACHE)


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """Live bytes by kind after an operator, and where it ran."""

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
    """Yield a point for each moment with allocations or frees: the highest level within it."""
    kinds = storage_kinds(log)
    live = dict.fromkeys(kinds_of(log), 0)
    for number, changed in groupby(changes(log, allocator), key=itemgetter(0)):
        highest, at_highest = -1, live
        for _, storage, nbytes in changed:
            live[kinds[storage]] += nbytes
            if allocator.allocated_bytes > highest:
                highest, at_highest = allocator.allocated_bytes, dict(live)
        moment = log.moments[number]
        path = path_of(log, moment.module)
        yield TimelinePoint(moment.operator, path, moment.phase, moment.step, tuple(at_highest.items()))


def path_of(log: MemoryLog, module: int) -> str:
    """Return a module's path by its number; "" for the root and for no module."""
    return log.module_paths[module] if module >= 0 else ""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes in the last step; each storage counts once, for the module that allocated it or holds its parameter.

    ``output_bytes`` is what its calls return and no module inside it returned before; ``saved_bytes`` is what its own
    operators keep for the backward.
    """

    output_bytes: int = 0
    saved_bytes: int = 0
    param_bytes: int = 0
    grad_bytes: int = 0
    optimizer_bytes: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(*[getattr(self, name) + getattr(other, name) for name in self.__slots__])


def footprints(log: MemoryLog) -> tuple[Footprint, ...]:
    """Return each module's own footprint; what no module owns belongs to the root."""
    held: dict[tuple[int, str], int] = defaultdict(int)
    for number, kind in _in_last_step(log):
        held[max(0, log.storages[number].owner), kind] += log.storages[number].nbytes
    seen: set[int] = set()
    last_calls = reversed([call for call in log.calls if call.step == log.moments[-1].step])
    for call in sorted(last_calls, key=attrgetter("stop")):  # Inner calls first: they returned it first.
        for number in call.outputs:
            if number not in seen and log.storages[number].kind is None:
                seen.add(number)
                held[call.module, "outputs"] += log.storages[number].nbytes
    kinds = ("outputs", "saved_activations", "parameters", "gradients", "optimizer_state")
    return tuple([Footprint(*[held[module, kind] for kind in kinds]) for module in range(len(log.module_paths))])


def _in_last_step(log: MemoryLog) -> Iterator[tuple[int, str]]:
    """Yield the storages live in the last step, with their kinds; saved activations only if that step made them."""
    last = log.moments[-1].step
    born, died = lifetimes(log)
    for number, kind in enumerate(storage_kinds(log)):
        if born[number] < 0 or (died[number] >= 0 and log.moments[log.events[died[number]][0]].step < last):
            continue
        if kind != "saved_activations" or log.moments[log.events[born[number]][0]].step == last:
            yield number, kind


Figures = TypeVar("Figures", int, float, Footprint)


def inclusive(paths: Sequence[str], own: Sequence[Figures]) -> tuple[Figures, ...]:
    """Return each module's figures including those of the modules inside it."""
    total = list(own)
    for index, parent in reversed(list(enumerate(parents(paths)))):
        if index:
            total[parent] += total[index]
    return tuple(total)


def parents(paths: Sequence[str]) -> list[int]:
    """Return for each module the number of its parent; the root is its own."""
    number = {path: index for index, path in enumerate(paths)}
    return [number.get(path.rpartition(".")[0], 0) for path in paths]


def call_memory(log: MemoryLog, allocator: Allocator) -> list[tuple[str, RowMemory]]:
    """Return the last step's calls in the order they began: the module's path, and what its own operators keep."""
    levels = list(accumulate(nbytes for _, _, nbytes in changes(log, allocator)))
    born, _ = lifetimes(log)
    saved: dict[int, int] = defaultdict(int)
    innermost = [-1] * len(log.events)  # The call in which each event happened.
    for number, call in enumerate(log.calls):  # Inner calls begin later.
        innermost[call.start : call.stop] = [number] * (call.stop - call.start)
    for storage, kind in _in_last_step(log):
        if kind == "saved_activations":
            saved[innermost[born[storage]]] += log.storages[storage].nbytes
    return [
        (log.module_paths[call.module], RowMemory(saved[number], peak_bytes=levels[call.stop - 1] if call.stop else 0))
        for number, call in enumerate(log.calls)
        if call.step == log.moments[-1].step
    ]


def module_memory(log: MemoryLog) -> dict[str, RowMemory]:
    """Return what each module holds besides its calls, by path: gradients, optimizer state, its rank's parameters."""
    shards = dict(log.shards)
    return {
        path: RowMemory(0, own.grad_bytes, own.optimizer_bytes, shards=shards.get(path, ()))
        for path, own in zip(log.module_paths, footprints(log))
    }
