"""Sizes of the blocks that code allocates and frees on the CPU, by torch's legacy profiler, in microseconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import profiler_legacy

_legacy: Any = profiler_legacy


@contextmanager
def block_sizes() -> Iterator[list[int]]:
    """Yield a list that on exit has the bytes of every allocated block in order, negative where a block was freed.

    The garbage collector is off meanwhile: what it frees is not the code's.
    """
    sizes: list[int] = []
    collects = gc.isenabled()
    gc.disable()
    try:
        _legacy._enable_profiler_legacy(_CONFIG)
        try:
            yield sizes
        finally:
            threads = _legacy._disable_profiler_legacy()
    finally:
        if collects:
            gc.enable()
    sizes += (event.cpu_memory_usage() for events in threads for event in events if event.kind() == "memory_alloc")


_STATE, _EXTRAS = _legacy.ProfilerState.CPU, torch._C._profiler._ExperimentalConfig()
_CONFIG = _legacy.ProfilerConfig(_STATE, False, True, False, False, False, _EXTRAS)
"""A profile of memory, without shapes, stacks, operations and modules."""
