"""The allocator's own history of a step, reduced to sizes and order, and replayed by the allocator model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchsummary_plus.memory.allocator import CachingAllocator
from torchsummary_plus.memory.allocator_options import AllocatorOptions

SEGMENT, RELEASED = -1, -2
"""In place of a block's number: memory that the allocator took from the device, and that it gave back."""

History = list[list[int]]
"""[block, bytes] in order: blocks are numbered from 0, and freed with 0 bytes."""


def reduce_history(snapshot: dict[str, Any], device: int = 0) -> History:
    """The events of ``torch.cuda.memory._snapshot()`` on one device, addresses replaced by numbers.

    >>> actions = ("segment_alloc", "alloc", "free_requested", "free_completed")
    >>> trace = [{"action": action, "addr": 64, "size": 8} for action in actions]
    >>> reduce_history({"device_traces": [trace]})
    [[-1, 8], [0, 8], [0, 0]]
    """
    history: History = []
    numbers: dict[int, int] = {}
    count = 0
    for entry in snapshot["device_traces"][device]:
        action, address, nbytes = entry["action"], entry.get("addr", 0), entry["size"]
        if action == "alloc":
            numbers[address] = count
            history.append([count, nbytes])
            count += 1
        elif action == "free_completed" and address in numbers:
            history.append([numbers.pop(address), 0])
        elif action in ("segment_alloc", "segment_map"):
            history.append([SEGMENT, nbytes])
        elif action in ("segment_free", "segment_unmap"):
            history.append([RELEASED, nbytes])
    return history


def replay_history(history: Sequence[Sequence[int]], options: AllocatorOptions | None = None) -> list[str]:
    """Where the allocator model takes or gives back other memory than the card's did; empty where nowhere.

    What the card takes from the device stands before the block that needed it, and what it gives back comes in runs,
    each the whole cache: the model is told to empty its own there.
    """
    allocator = CachingAllocator(options)
    wrong: list[str] = []
    taken = released = 0
    for index, (block, nbytes) in enumerate(history):
        if block == SEGMENT:
            taken += nbytes
            continue
        if block == RELEASED:
            released += nbytes
            continue
        if released:
            wrong += _emptied(allocator, released, index)
            released = 0
        before = allocator.reserved_bytes
        if nbytes:
            allocator.allocate(block, nbytes)
        else:
            allocator.free(block)
        if allocator.reserved_bytes - before != taken:
            wrong.append(f"event {index}: {allocator.reserved_bytes - before:,} bytes taken, {taken:,} on the card")
        taken = 0
    return wrong + (_emptied(allocator, released, len(history)) if released else [])


def _emptied(allocator: CachingAllocator, released: int, index: int) -> list[str]:
    before = allocator.reserved_bytes
    allocator.empty_cache()
    given = before - allocator.reserved_bytes
    return [] if given == released else [f"event {index}: {given:,} bytes given back, {released:,} on the card"]
