"""Any batch size from a few traces: each event's bytes are a polynomial of the batch, and a replay finds the peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm, prod
from operator import mul

from ..data.kernel_records import Kernel
from ..data.memory_records import MemoryLog, StorageSpec


def scales(low: MemoryLog, high: MemoryLog) -> bool:
    """Whether two logs have the same events and differ only in bytes."""
    return (
        len(low.events) == len(high.events)
        and len(low.storages) == len(high.storages)
        and len(low.doubts) == len(high.doubts)
        and all(a[0] == b[0] and a[1] == b[1] and bool(a[2]) == bool(b[2]) for a, b in zip(low.events, high.events))
    )


def at_batch(logs: Mapping[int, MemoryLog], batch: int) -> MemoryLog:
    """Return the log of another batch, from logs by batch, by interpolating each event with a polynomial."""
    weights, over = _weights(tuple(logs), batch)
    first = next(iter(logs.values()))

    def through(sizes: tuple[int, ...]) -> int:
        if sizes.count(sizes[0]) == len(sizes):
            return sizes[0]
        weighted: int = sum(map(mul, weights, sizes))
        return max(1, weighted // over)

    sizes = zip(*([nbytes for _, _, nbytes in log.events] for log in logs.values()))
    events = tuple([(moment, storage, through(row)) for (moment, storage, _), row in zip(first.events, sizes)])
    storages = tuple([_spec(row, through) for row in zip(*(log.storages for log in logs.values()))])
    doubted = zip(*(log.doubts for log in logs.values()))
    doubts = tuple(replace(row[0], nbytes=through(tuple(doubt.nbytes for doubt in row))) for row in doubted)
    work = zip(*(log.mult_adds or () for log in logs.values()))
    counts = tuple((row[0][0], through(tuple(count for _, count in row))) for row in work)
    mult_adds = None if first.mult_adds is None else counts
    others = _others(logs, batch)
    kernels = tuple([_kernel(row, through) for row in zip(*(log.kernels for log in logs.values()))])
    log = replace(first, events=events, storages=storages, doubts=doubts, mult_adds=mult_adds, others=others)
    return replace(log, kernels=kernels)


def _others(logs: Mapping[int, MemoryLog], batch: int) -> tuple[MemoryLog, ...]:
    """Return the logs under other assumptions that every batch has, at another batch."""
    rows = zip(*(log.others for log in logs.values()))
    alike = (row for row in rows if all(scales(row[0], other) for other in row[1:]))
    return tuple(at_batch(dict(zip(logs, row)), batch) for row in alike)


def _kernel(row: Sequence[Kernel], through: Callable[[tuple[int, ...]], int]) -> Kernel:
    """Return the kernel of another batch, from those of each log."""
    numbers = [kernel.numbers for kernel in row]
    if numbers.count(numbers[0]) == len(numbers):
        return row[0]
    return Kernel(row[0].moment, row[0].kind, row[0].dtype, *map(through, zip(*numbers)))


def _spec(row: Sequence[StorageSpec], through: Callable[[tuple[int, ...]], int]) -> StorageSpec:
    """Return the storage of another batch, from those of each log."""
    first = row[0]
    nbytes = through(tuple([spec.nbytes for spec in row]))
    if nbytes == first.nbytes and not first.lesser:
        return first
    return replace(first, nbytes=nbytes, lesser=_lesser(row, through))


def _lesser(specs: Sequence[StorageSpec], through: Callable[[tuple[int, ...]], int]) -> tuple[int, ...]:
    """Return the smaller sizes of optional scratch memory, matched from the last one: as many as every log has."""
    least_first = zip(*(reversed(spec.lesser) for spec in specs))
    return tuple(reversed([through(sizes) for sizes in least_first]))


def _weights(batches: tuple[int, ...], batch: int) -> tuple[list[int], int]:
    """Return the Lagrange weights for a batch, as integers over a common denominator."""
    parts = []
    for node in batches:
        others = [other for other in batches if other != node]
        parts.append((prod(batch - other for other in others), prod(node - other for other in others)))
    over = lcm(*(below for _, below in parts))
    return [above * (over // below) for above, below in parts], over
