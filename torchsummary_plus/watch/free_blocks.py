"""Take the free blocks of a CUDA allocator's segments, so that measured steps start as in a new process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..data.rounding import SMALL_REQUEST


@contextmanager
def free_blocks_taken(device: torch.device) -> Iterator[None]:
    """Take the free blocks of a CUDA device's cached segments, so that what runs inside gets its own segments.

    Does nothing on other devices, and with an allocator other than torch's own.
    """
    fillers: list[torch.Tensor] = []
    if device.type == "cuda" and torch.cuda.get_allocator_backend() == "native":
        reserved = torch.cuda.memory_reserved(device)
        for nbytes in requests_that_fill(_segments(device)):
            fillers.append(torch.empty(nbytes, dtype=torch.uint8, device=device))
            if torch.cuda.memory_reserved(device) > reserved:  # the allocator's options round this request up
                fillers.pop()
                torch.cuda.empty_cache()
    try:
        yield
    finally:
        fillers.clear()


def _segments(device: torch.device) -> list[Mapping[str, Any]]:
    """Return the segments that serve requests on the device's current stream."""
    stream = torch.cuda.current_stream(device).cuda_stream
    index = torch.cuda.current_device() if device.index is None else device.index
    return [
        segment
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == index and segment["stream"] == stream and tuple(segment["segment_pool_id"]) == (0, 0)
    ]


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
