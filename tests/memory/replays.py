"""Events of blocks, run through an allocator."""

from collections.abc import Iterable
from dataclasses import dataclass

from torchsummary_plus.memory.allocator import Allocator, AllocatorOptions, CachingAllocator

Event = tuple[int, int]
"""A block's number, and the bytes it is allocated with, or 0 when it is freed."""


@dataclass(frozen=True)
class Failure:
    """Out of memory: event number ``event`` requested ``nbytes``, for which the limit is ``missing_bytes`` too low."""

    event: int
    nbytes: int
    missing_bytes: int


@dataclass(frozen=True)
class Replay:
    """The levels after each event, the highest reserved one, and the event that failed, which ends the replay."""

    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    peak_reserved_bytes: int
    failed: Failure | None

    @property
    def allocated_bytes(self) -> int:
        return self.allocated[-1]

    @property
    def reserved_bytes(self) -> int:
        return self.reserved[-1]


def replay(events: Iterable[Event], options: AllocatorOptions | None = None, limit: int | None = None) -> Replay:
    """Run events through the CUDA allocator, up to the first that runs out of memory."""
    return replay_in(CachingAllocator(options, limit), events)


def replay_in(allocator: Allocator, events: Iterable[Event]) -> Replay:
    """Run events through an allocator, up to the first that runs out of memory."""
    levels, failed = [], None
    for index, (block, nbytes) in enumerate(events):
        if not nbytes:
            allocator.free(block)
        elif missing := allocator.allocate(block, nbytes):
            failed = Failure(index, nbytes, missing)
            break
        levels.append((allocator.allocated_bytes, allocator.reserved_bytes))
    allocated, reserved = zip(*levels)
    return Replay(allocated, reserved, allocator.peak_reserved_bytes, failed)


@dataclass(frozen=True)
class Segment:
    """A range of reserved memory and its blocks in order of address: (bytes, allocated?)."""

    address: int
    blocks: tuple[tuple[int, bool], ...]

    @property
    def nbytes(self) -> int:
        return sum(nbytes for nbytes, _ in self.blocks)


def segments(allocator: CachingAllocator) -> tuple[Segment, ...]:
    """Return all reserved memory by address; of an expandable segment, each contiguously mapped part."""
    cached = [block for pools in allocator._pools.values() for pool in pools for _, _, block in pool.cached]
    found = []
    for first in sorted([*cached, *allocator._live.values()], key=lambda block: block.address):
        if first.previous is None or not first.previous.mapped:
            blocks, block = [], first
            while block is not None and block.mapped:
                blocks.append((block.size, not block.cached))
                block = block.following
            found.append(Segment(first.address, tuple(blocks)))
    return tuple(found)
