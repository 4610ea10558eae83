"""A step on a GPU, from the log of the same step with the CPU's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..data.capability import Capability
from ..data.memory_records import Doubt, MemoryLog, StorageSpec
from ..ops.scratch.cuda.blas import HANDLES, workspace_bytes
from ..ops.scratch.registry import LASTING
from .workspace import LARGEST_LASTING

OTHER_KERNELS = 0.5
"""Relative error assumed for each storage that a step allocates with another device's kernels."""


def by_other_kernels(log: MemoryLog, capability: Capability, why: str) -> MemoryLog:
    """Return the CPU's log for a GPU: storages get an error band, and the range has room for cuBLAS and cuDNN."""
    log = in_wide_bands(log, why)
    level, highest, sizes = 0, (0, 0, 0), dict[int, int]()
    for number, (moment, storage, nbytes) in enumerate(log.events):
        level += (nbytes or 0) - sizes.pop(storage, 0)
        sizes[storage] = nbytes
        highest = max(highest, (level, number + 1, moment))
    _, event, moment = highest
    doubts = (*log.doubts, Doubt(event, moment, 2 * workspace_bytes(capability) + LARGEST_LASTING))
    doubts = tuple(sorted(doubts, key=lambda doubt: doubt.event))
    return replace(log, in_blocks=False, doubts=doubts, bands=())


def in_wide_bands(log: MemoryLog, why: str, band: float = OTHER_KERNELS) -> MemoryLog:
    """Return a log in which storages allocated during the step have an error band, with the reason for it."""
    from_setup = {storage for moment, storage, nbytes in log.events if nbytes and log.moments[moment].phase == "setup"}
    storages = tuple(
        spec if number in from_setup else replace(spec, band=max(spec.band, band))
        for number, spec in enumerate(log.storages)
    )
    return replace(log, storages=storages, assumptions=(why, *log.assumptions))


def with_cublas(log: MemoryLog, capability: Capability) -> MemoryLog:
    """Add cuBLAS's workspaces to the log of a real step on the CPU, at each thread's first product of matrices."""
    firsts = list(_first_products(log))
    workspace = StorageSpec(workspace_bytes(capability), "workspace", -1)
    events = list(log.events)
    for number, event in reversed(list(enumerate(firsts))):
        events.insert(event, (events[event][0], len(log.storages) + number, workspace.nbytes))
    doubts = tuple(
        replace(doubt, event=doubt.event + sum(first < doubt.event for first in firsts)) for doubt in log.doubts
    )
    streams = log.streams and (*log.streams, *(0 for _ in firsts))
    storages = (*log.storages, *(workspace for _ in firsts))
    return replace(log, events=tuple(events), doubts=doubts, streams=streams, storages=storages)


def _first_products(log: MemoryLog) -> Iterator[int]:
    """Yield the first event of a product in the backward, which runs on a thread of its own, and outside of it."""
    products = {
        name for (backend, name), rule in LASTING.items() if backend == "cuda" and rule.source.startswith(HANDLES)
    }
    seen = set()
    for event, (moment, _, nbytes) in enumerate(log.events):
        at = log.moments[moment]
        in_backward = at.phase == "backward"
        if nbytes and at.operator in products and in_backward not in seen:
            seen.add(in_backward)
            yield event
