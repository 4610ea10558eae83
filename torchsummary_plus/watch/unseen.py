"""Memory that a library frees without a report to torch's profiler, as QNNPACK's allocator does.

Source: c10/core/CPUAllocator.cpp, ``DefaultMobileCPUAllocator``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from ..data.memory_records import MemoryLog, StorageSpec, without
from ..trace.questions import OUTSIDE


def with_unseen_frees(log: MemoryLog, reused: Collection[int], packed_bytes: int) -> MemoryLog:
    """Widen a log's range if frees were not reported: the storages concerned may all be live, or all be freed.

    ``reused`` are storages whose memory was allocated again before a free was reported; the library may also have freed
    every other storage that operators left. ``packed_bytes`` were packed before the steps by the same allocator.
    """
    left = _left_behind(log)
    if not reused and not (left and torch.backends.quantized.engine == "qnnpack"):
        return log
    unseen = left | set(reused)
    events = tuple(event for event in log.events if event[2] or event[1] not in reused)
    before = (0, len(log.storages), packed_bytes)
    storages = (*log.storages, StorageSpec(packed_bytes, "workspace", OUTSIDE))
    most = replace(log, events=(before, *events) if packed_bytes else events, storages=storages, calls=(), doubts=())
    nbytes = sum(log.storages[number].nbytes for number in unseen)
    note = f"torch's profiler did not record the release of up to {nbytes:,} bytes of the steps"
    return replace(log, others=(*log.others, without(log, unseen), most), assumptions=(*log.assumptions, note))


def _left_behind(log: MemoryLog) -> set[int]:
    """Return the storages of no known kind that the steps' operators allocate and do not free."""
    live: set[int] = set()
    for moment, number, nbytes in log.events:
        if not nbytes:
            live.discard(number)
        elif log.moments[moment].operator:
            live.add(number)
    return {number for number in live if log.storages[number].kind is None}
