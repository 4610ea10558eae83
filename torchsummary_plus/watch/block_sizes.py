"""Sizes of the blocks that code allocates and frees on the CPU, by torch's legacy profiler, in microseconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ..live import compat


@contextmanager
def block_sizes() -> Iterator[list[int]]:
    """Yield a list that on exit has the bytes of every allocated block in order, negative where a block was freed.

    The garbage collector is off meanwhile: what it frees is not the code's.
    """
    sizes: list[int] = []
    collects = gc.isenabled()
    gc.disable()
    try:
        compat.start_legacy_profile(_CONFIG)
        try:
            yield sizes
        finally:
            threads = compat.end_legacy_profile()
    finally:
        if collects:
            gc.enable()
    sizes += (event.cpu_memory_usage() for events in threads for event in events if event.kind() == "memory_alloc")


_CONFIG = compat.legacy_config(compat.legacy_state.CPU, False, True, False, False, False, compat.profiler_extras())
"""A profile of memory, without shapes, stacks, operations and modules."""
