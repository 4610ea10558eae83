"""torch's CUDA caching allocator as arithmetic: one device, one stream, no memory touched.

A request is rounded up to 512 bytes and served from the small pool (up to 1 MiB) or the large one: by the smallest cached
block that fits, the lowest address first, else by a new segment of 2 MiB (small), 20 MiB (under 10 MiB) or its own size
rounded up to 2 MiB. What a block has too much is split off, but in the large pool only if it is more than 1 MiB: the
whole block counts as allocated otherwise. A freed block joins its free neighbours. Segments stay until memory runs out;
then those that are free as a whole go back to the device, and the request is tried again.

With ``expandable_segments`` each pool has one segment, mapped in pages of 2 and 20 MiB and growing at its end.

Source of the rules: c10/cuda/CUDACachingAllocator.cpp of pytorch/pytorch, as of torch 2.11 to 2.13. Left out: other streams,
CUDA graphs and private pools; an expandable segment's address space (1 1/8 of the card's memory) is endless here; new segments
lie above all others, where a driver may choose freely.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..errors import InputError, choice_error
from ..units import MIB
from .allocator_options import MIN_BLOCK, AllocatorOptions

SMALL_REQUEST = MIB
"""The largest rounded request of the small pool."""
SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT = 10 * MIB
"""From here on a request gets a segment of its own."""
SEGMENT_STEP = 2 * MIB
"""The unit of a segment of its own."""

ENDLESS = 1 << 62
"""More bytes than any device has: the limit where none is given, the size up to which blocks are split."""
ADDRESS_SPACE = 1 << 60
"""Of an expandable segment."""

Event = tuple[int, int]
"""A block's number, and the bytes it is allocated with; 0 frees it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Out of memory: the ``event`` asked for ``nbytes``, and the limit was ``missing_bytes`` too low for it."""

    event: int
    nbytes: int
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What an allocator says after a series of events, or at the one that failed, which changes nothing but frees the cache.

    ``peak_event`` is the first event at which ``peak_allocated_bytes`` is reached (None where nothing was allocated).
    The histories hold the bytes after each event, and are empty unless they were asked for.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event: int | None
    allocated_bytes: int
    reserved_bytes: int
    failed: Failure | None = None
    allocated_history: tuple[int, ...] = ()
    reserved_history: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of device memory and the blocks it is cut into: (bytes, is it allocated?) from its lowest address up."""

    address: int
    blocks: tuple[tuple[int, bool], ...]

    @property
    def nbytes(self) -> int:
        return sum(nbytes for nbytes, _ in self.blocks)


class Allocator(Protocol):
    """What :func:`replay` drives."""

    allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int

    def allocate(self, block: int, nbytes: int) -> int:
        """Allocate, and return 0; or change nothing but the cache, and return how many bytes the limit is too low."""

    def free(self, block: int) -> None:
        """Free what :meth:`allocate` gave under this number."""


def replay(
    events: Iterable[Event],
    options: AllocatorOptions | None = None,
    limit: int | None = None,
    *,
    device: str = "cuda",
    history: bool = False,
) -> Replay:
    """Run events through the allocator of a device ("cuda" or "cpu"), up to the first that finds no memory.

    ``limit`` is what the device can give to the allocator, in bytes: its memory without the context. ``options`` are those of
    the CUDA allocator. Deterministic; a million events take a few seconds. Raises InputError for a block that is allocated
    twice, freed without being allocated, or of a negative size.

    >>> result = replay([(0, 1_000), (1, 3 << 20), (0, 0)])
    >>> result.peak_allocated_bytes, result.peak_reserved_bytes, result.allocated_bytes
    (3146752, 23068672, 3145728)
    >>> replay([(0, 100 << 20), (1, 60 << 20)], limit=150 << 20).failed
    Failure(event=1, nbytes=62914560, missing_bytes=10485760)
    """
    allocator: Allocator
    if device == "cuda":
        allocator = CachingAllocator(options, limit)
    elif device == "cpu":
        allocator = CpuAllocator(limit)
    else:
        raise choice_error("device", device, ("cuda", "cpu"))
    return _run(allocator, events, history)


def _run(allocator: Allocator, events: Iterable[Event], history: bool) -> Replay:
    peak, peak_event, failed = 0, None, None
    allocated: list[int] = []
    reserved: list[int] = []
    for index, (block, nbytes) in enumerate(events):
        if nbytes:
            missing = allocator.allocate(block, nbytes)
            if missing:
                failed = Failure(index, nbytes, missing)
                break
            if allocator.allocated_bytes > peak:
                peak, peak_event = allocator.allocated_bytes, index
        else:
            allocator.free(block)
        if history:
            allocated.append(allocator.allocated_bytes)
            reserved.append(allocator.reserved_bytes)
    return Replay(
        peak_allocated_bytes=peak,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_event=peak_event,
        allocated_bytes=allocator.allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        failed=failed,
        allocated_history=tuple(allocated),
        reserved_history=tuple(reserved),
    )


class CpuAllocator:
    """The CPU's: as many bytes as were asked for, given back at once, as torch's profiler counts them.

    >>> cpu = CpuAllocator()
    >>> cpu.allocate(0, 1_000), cpu.allocated_bytes
    (0, 1000)
    """

    def __init__(self, limit: int | None = None) -> None:
        self.allocated_bytes = self.reserved_bytes = self.peak_reserved_bytes = 0
        self._limit = ENDLESS if limit is None else limit
        self._live: dict[int, int] = {}

    def allocate(self, block: int, nbytes: int) -> int:
        _check(block, nbytes, block in self._live)
        missing = self.allocated_bytes + nbytes - self._limit
        if missing > 0:
            return missing
        self._live[block] = nbytes
        self.allocated_bytes = self.reserved_bytes = self.allocated_bytes + nbytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return 0

    def free(self, block: int) -> None:
        nbytes = self._live.pop(block, None)
        if nbytes is None:
            raise _not_live(block)
        self.allocated_bytes = self.reserved_bytes = self.allocated_bytes - nbytes


class CachingAllocator:
    """CUDA's, event by event. Its laws: allocated <= reserved <= limit, and blocks never overlap.

    >>> cuda = CachingAllocator()
    >>> cuda.allocate(0, 1_000), cuda.allocate(1, 1 << 20)
    (0, 0)
    >>> cuda.segments()
    (Segment(address=0, blocks=((1024, True), (1048576, True), (1047552, False))),)
    """

    def __init__(self, options: AllocatorOptions | None = None, limit: int | None = None) -> None:
        self.options = options = options or AllocatorOptions()
        self.allocated_bytes = self.reserved_bytes = self.peak_reserved_bytes = 0
        self._limit = ENDLESS if limit is None else limit
        self._max_split = options.max_split_bytes or ENDLESS
        self._max_spare = options.max_non_split_rounding_bytes or options.large_segment_bytes
        self._expandable = options.expandable_segments
        self._small = _Pool(split_from=MIN_BLOCK, page=SMALL_SEGMENT)
        self._large = _Pool(MIN_BLOCK if self._expandable else SMALL_REQUEST + 1, options.large_segment_bytes)
        self._live: dict[int, _Block] = {}
        self._next_address = 0

    def allocate(self, block: int, nbytes: int) -> int:
        """0 once allocated; else the bytes by which the limit is too low, the cache freed and all else as before."""
        _check(block, nbytes, block in self._live)
        size = self.options.rounded(nbytes)
        pool = self._small if size <= SMALL_REQUEST else self._large
        found = self._cached(pool, size) or self._new(pool, size) or self._new_after_release(pool, size)
        if found is None:
            return self.reserved_bytes + self._growth(pool, size) - self._limit
        if found.size - size >= pool.split_from and (pool is self._small or self._expandable or size < self._max_split):
            pool.cache(found.split(size))
        self._live[block] = found
        self.allocated_bytes += found.size
        return 0

    def free(self, block: int) -> None:
        """Back to the cache, joined with the free blocks on either side."""
        freed = self._live.pop(block, None)
        if freed is None:
            raise _not_live(block)
        self.allocated_bytes -= freed.size
        freed.pool.cache_joined(freed)

    def empty_cache(self) -> None:
        """Give back to the device what holds no allocated block: whole segments, or whole pages of an expandable one."""
        for pool in (self._large, self._small):
            for block in [block for _, _, block in pool.cached]:
                if self._expandable:
                    self._unmap(block)
                elif block.previous is block.following is None:
                    self._release(block)

    def segments(self) -> tuple[Segment, ...]:
        """A snapshot in the order of addresses; of an expandable segment, each stretch that is mapped without a gap."""
        cached = (block for pool in (self._small, self._large) for _, _, block in pool.cached)
        firsts = [b for b in (*cached, *self._live.values()) if b.previous is None or not b.previous.mapped]
        shown = (Segment(b.address, tuple((part.size, not part.is_free) for part in b.stretch())) for b in firsts)
        return tuple(sorted(shown, key=lambda segment: segment.address))

    def _cached(self, pool: _Pool, size: int) -> _Block | None:
        """The smallest cached block of at least this size, out of the cache; an expandable end counts with all it can grow to."""
        cached = pool.cached
        index = bisect_left(cached, (size,))
        if index == len(cached):
            return None
        if self._expandable:
            while index + 1 < len(cached) and cached[index + 1][2].reach() < cached[index][2].reach():
                index += 1
        found = cached[index][0]
        if found >= self._max_split if size < self._max_split else found >= size + self._max_spare:
            return None
        return pool.take(index)

    def _growth(self, pool: _Pool, size: int) -> int:
        """What a request that no cached block serves takes from the device, in bytes."""
        if self._expandable:
            return sum(_mapped_bytes(block, wanted, pool.page) for block, wanted in self._gaps(pool, size))
        if pool is self._small:
            return SMALL_SEGMENT
        return pool.page if size < OWN_SEGMENT else -(-size // SEGMENT_STEP) * SEGMENT_STEP

    def _new(self, pool: _Pool, size: int) -> _Block | None:
        """A block of memory fresh from the device, or None where that would pass the limit."""
        growth = self._growth(pool, size)
        if self.reserved_bytes + growth > self._limit:
            return None
        self.reserved_bytes += growth
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        if self._expandable:
            return self._map(pool, size)
        return self._fresh(pool, growth)

    def _fresh(self, pool: _Pool, size: int) -> _Block:
        """A block at an address of its own."""
        address = -(-self._next_address // pool.page) * pool.page
        self._next_address = address + size
        return _Block(address, size, pool)
