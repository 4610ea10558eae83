"""A CUDA device's caching allocator: its history, the blocks in use before, and its free blocks.

Measured steps take these first, so that they start as in a new process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..data.units import SMALL_REQUEST
from ..live import compat

Happened = list[tuple[int, int, int]]
"""Every allocation and free in order: time in nanoseconds, address, bytes (negative for a free)."""


def happened(trace: Iterable[Mapping[str, Any]]) -> Happened:
    """Return the allocations and frees in a trace of ``torch.cuda.memory._snapshot()``.

    A free counts from its request, as in ``allocated_bytes``: c10/cuda/CUDACachingAllocator.cpp.

    >>> happened([{"action": "free_requested", "addr": 64, "size": 8, "time_us": 5}, {"action": "free_completed"}])
    [(5000, 64, -8)]
    """
    signs = {"alloc": 1, "free_requested": -1}
    signed = ((signs[entry["action"]], entry) for entry in trace if entry["action"] in signs)
    return [(entry["time_us"] * 1000, entry["addr"], sign * entry["size"]) for sign, entry in signed]


class AllocatorHistory:
    """Records the history of a CUDA device's allocator while open; on other devices, does nothing.

    A recording that the user has started continues. On exit, ``happened`` and ``peak_bytes`` are set, the second as the
    most allocated above the initial level; ``blocks`` are those initially in use.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.happened: Happened = []
        self.blocks: dict[int, int] = {}
        self.peak_bytes: int | None = None
        self._is_ours = False
        self._before = self._start_bytes = 0

    def __enter__(self) -> AllocatorHistory:
        if self.device.type == "cuda":
            self._is_ours = not compat.history_enabled()
            if self._is_ours:
                compat.record_history("all", context=None, stacks="python", device=self.device, clear_history=True)
            snapshot = compat.allocator_snapshot(self.device)
            blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
            self.blocks = {b["address"]: b["size"] for b in blocks if b["state"] == "active_allocated"}
            self._before = len(snapshot["device_traces"][index_of(self.device)])
            self._start_bytes = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *raised: object) -> None:
        if self.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(self.device) - self._start_bytes
            entries = compat.allocator_snapshot(self.device)["device_traces"][index_of(self.device)][self._before :]
            self.happened = happened(entries)
            if self._is_ours:
                compat.record_history(None, device=self.device)


def index_of(device: torch.device) -> int:
    """Return the number of a CUDA device."""
    return torch.cuda.current_device() if device.index is None else device.index


@contextmanager
def free_blocks_taken(device: torch.device) -> Iterator[None]:
    """Take the free blocks of a CUDA device's cached segments, so that what runs inside gets its own segments.

    Does nothing on other devices, and with an allocator other than torch's own.
    """
    fillers: list[torch.Tensor] = []
    if device.type == "cuda" and torch.cuda.get_allocator_backend() == "native":
        reserved = torch.cuda.memory_reserved(device)
        stream, pool = torch.cuda.current_stream(device).cuda_stream, (0, 0)
        segments = [
            segment
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == index_of(device)
            and (segment["stream"], tuple(segment["segment_pool_id"])) == (stream, pool)
        ]
        for nbytes in requests_that_fill(segments):
            fillers.append(torch.empty(nbytes, dtype=torch.uint8, device=device))
            if torch.cuda.memory_reserved(device) > reserved:  # the allocator's options round this request up
                fillers.pop()
                torch.cuda.empty_cache()
    try:
        yield
    finally:
        fillers.clear()


def requests_that_fill(segments: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the requests in bytes, in order, that take every free block; the allocator gives the smallest that fits.

    A free block of the small pool may be larger than what it serves, and takes several requests. Large blocks of at
    most 1 MiB serve nothing.

    >>> def segment(kind, *sizes):
    ...     return {"segment_type": kind, "blocks": [{"state": "inactive", "size": size} for size in sizes]}
    >>> requests_that_fill([segment("small", 512, 1536 * 1024), segment("large", 3 << 20, 4096)])
    [512, 1048576, 524288, 3145728]
    """
    free = [
        (block["size"], segment["segment_type"])
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    requests: list[int] = []
    for size, kind in sorted(free):
        if kind == "large":
            requests.extend([size] if size > SMALL_REQUEST else [])
        else:
            requests.extend(min(SMALL_REQUEST, size - start) for start in range(0, size, SMALL_REQUEST))
    return requests
