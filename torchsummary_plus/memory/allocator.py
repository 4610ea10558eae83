"""A model of torch's CUDA caching allocator for one device; no memory is touched.

A request is rounded up to 512 bytes and served from the small pool (up to 1 MiB) or the large pool: by the smallest
cached block that fits, of the oldest segment or with the lowest address (:mod:`.addresses`), else from a new segment of
2 MiB (small), 20 MiB (under 10 MiB) or its own size rounded up to 2 MiB. The rest of a block is split off, in the large
pool only if it exceeds 1 MiB; otherwise the whole block counts as allocated. A freed block merges with its free
neighbours. Segments are kept until the device is out of memory; then entirely free segments are returned to it and the
request is retried.

With ``expandable_segments`` each pool has one segment, mapped in pages of 2 or 20 MiB, that grows at its end.

Each stream has its own pools: a freed block serves only requests of the stream it was allocated in.

Source: c10/cuda/CUDACachingAllocator.cpp of pytorch/pytorch, as of early 2026; the headers of torch 2.11, 2.12 and
2.13 have the same constants and options for device memory. A block given to another stream by ``record_stream`` is
free again at once here (:func:`held_back` has the other extreme). Not modelled: private pools (of CUDA graphs) and the
upper limit of an expandable segment (1 1/8 of the GPU's memory).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..data.errors import InputError
from ..data.rounding import MIN_BLOCK, SMALL_REQUEST
from ..data.units import MIB
from ..live.versions import since
from .addresses import AgeOrder, DriverOrder
from .allocator_options import AllocatorOptions
from .blocks import SMALL_SEGMENT, Block, ExpandableSegments, FixedSegments, Pool, Segments

OLDEST_FIRST_SINCE = "2.13"
OLDEST_FIRST = since(OLDEST_FIRST_SINCE)
"""Whether the running torch prefers the oldest segment's block to the one with the lowest address."""

ENDLESS = 1 << 62
"""The limit if none is given, and the size up to which blocks may be split."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of device memory and its blocks in order of address: (bytes, allocated?)."""

    address: int
    blocks: tuple[tuple[int, bool], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(nbytes for nbytes, _ in self.blocks)


class CpuAllocator:
    """The CPU allocator: exactly the requested bytes, as torch's profiler counts them, returned when freed.

    >>> cpu = CpuAllocator()
    >>> cpu.allocate(0, 1_000), cpu.allocated_bytes
    (0, 1000)
    """

    def __init__(self, limit: int | None = None) -> None:
        self.allocated_bytes = self.reserved_bytes = self.peak_reserved_bytes = 0
        self._limit = ENDLESS if limit is None else limit
        self._live: dict[int, int] = {}

    def allocate(self, block: int, nbytes: int, stream: int = 0) -> int:
        """Allocate and return 0, or return how much too low the limit is; raises InputError for a live block."""
        if nbytes <= 0 or block in self._live:
            raise _cannot_allocate(block, nbytes)
        total = self.allocated_bytes + nbytes
        if total > self._limit:
            return total - self._limit
        self._live[block] = nbytes
        self.allocated_bytes = self.reserved_bytes = total
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, total)
        return 0

    def free(self, block: int) -> None:
        """Free a block; raises InputError if it is not live."""
        nbytes = self._live.pop(block, None)
        if nbytes is None:
            raise _cannot_free(block)
        self.allocated_bytes = self.reserved_bytes = self.allocated_bytes - nbytes


class CachingAllocator:
    """The CUDA allocator: allocated <= reserved <= limit, and blocks never overlap.

    >>> cuda = CachingAllocator(oldest_first=True)
    >>> cuda.allocate(0, 1_000), cuda.allocate(1, 1 << 20)
    (0, 0)
    >>> cuda.segments()
    (Segment(address=0, blocks=((1024, True), (1048576, True), (1047552, False))),)
    """

    def __init__(
        self, options: AllocatorOptions | None = None, limit: int | None = None, oldest_first: bool = OLDEST_FIRST
    ) -> None:
        self.options = options = options or AllocatorOptions()
        self.allocated_bytes = self.reserved_bytes = self.peak_reserved_bytes = 0
        self._limit = ENDLESS if limit is None else limit
        self._max_split = options.max_split_bytes or ENDLESS
        self._max_spare = options.max_non_split_rounding_bytes or options.large_segment_bytes
        self._expandable = options.expandable_segments
        fixed = FixedSegments(AgeOrder() if oldest_first else DriverOrder())
        self._segments: Segments = ExpandableSegments() if self._expandable else fixed
        self._pools: dict[int, tuple[Pool, Pool]] = {0: self._new_pools()}
        """By stream: the small and the large pool."""
        self._live: dict[int, Block] = {}

    def allocate(self, block: int, nbytes: int, stream: int = 0) -> int:
        """Allocate and return 0; else empty the cache and return how many bytes too low the limit is."""
        if nbytes <= 0 or block in self._live:
            raise _cannot_allocate(block, nbytes)
        size = self.options.rounded(nbytes)
        if stream not in self._pools:
            self._pools[stream] = self._new_pools()
        pool = self._pools[stream][size > SMALL_REQUEST]
        space = self._cached(pool, size) or self._new(pool, size)
        if space is None:
            return self.reserved_bytes + self._segments.growth(pool, size) - self._limit
        if space.size - size >= pool.split_from and (size < self._max_split or self._expandable):
            pool.put(space.split(size))
        self._live[block] = space
        self.allocated_bytes += space.size
        return 0

    def free(self, block: int) -> None:
        """Return the block to the cache, merged with its cached neighbours; raises InputError if it is not live."""
        freed = self._live.pop(block, None)
        if freed is None:
            raise _cannot_free(block)
        self.allocated_bytes -= freed.size
        freed.pool.put(freed)

    def empty_cache(self) -> None:
        """Return to the device all segments, or pages of an expandable one, without allocated blocks."""
        for pool in (pool for small, large in self._pools.values() for pool in (large, small)):
            self.reserved_bytes -= self._segments.give_back(pool)

    def segments(self) -> tuple[Segment, ...]:
        """Return all reserved memory by address; of an expandable segment, each contiguously mapped part."""
        cached = [block for pools in self._pools.values() for pool in pools for _, _, block in pool.cached]
        firsts = [b for b in (*cached, *self._live.values()) if b.previous is None or not b.previous.mapped]
        firsts.sort(key=lambda block: block.address)
        return tuple(Segment(b.address, tuple((part.size, not part.cached) for part in b.stretch())) for b in firsts)

    def _new_pools(self) -> tuple[Pool, Pool]:
        split_from = MIN_BLOCK if self._expandable else MIB + 1
        return Pool(SMALL_SEGMENT, split_from=MIN_BLOCK), Pool(self.options.large_segment_bytes, split_from=split_from)

    def _cached(self, pool: Pool, size: int) -> Block | None:
        """Take the smallest cached block that fits out of the cache.

        A block too large to be split serves no smaller request, nor one that would leave too much of it unused.
        """
        cached = pool.cached
        index = pool.first_fit(size)
        if index == len(cached):
            return None
        if self._expandable:
            index = pool.sparing_the_end(index)
        too_large = size + self._max_spare if size >= self._max_split else self._max_split
        return pool.take(index) if cached[index][0] < too_large else None

    def _new(self, pool: Pool, size: int) -> Block | None:
        """Return a block of new device memory; if the limit forbids it, retry after emptying the cache."""
        block = self._grown(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._grown(pool, size)
        if block is None:
            self.empty_cache()
            block = self._grown(pool, size)
        return block

    def _grown(self, pool: Pool, size: int) -> Block | None:
        reserved = self.reserved_bytes + self._segments.growth(pool, size)
        if reserved > self._limit:
            return None
        self.reserved_bytes = reserved
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
        return self._segments.grow(pool, size)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Return just enough of the unsplittable cached blocks to the device, if any."""
        segments = self._segments
        if not isinstance(segments, FixedSegments) or self._max_split == ENDLESS:
            return False
        wanted = max(size, self._max_split)
        index = pool.first_fit(wanted)
        if index < len(pool.cached):
            self.reserved_bytes -= segments.release(pool.take(index))
            return True
        released = 0
        while released < wanted and pool.cached and pool.cached[-1][0] >= self._max_split:
            released += segments.release(pool.take(-1))
        self.reserved_bytes -= released
        return released >= wanted


Allocator = CachingAllocator | CpuAllocator


def _cannot_allocate(block: int, nbytes: int) -> InputError:
    if nbytes <= 0:
        return InputError(f"Block {block} is allocated with {nbytes} bytes; accepted: 1 or more")
    return InputError(f"Block {block} is allocated while it is live; free it first, or give each block its own number")


def _cannot_free(block: int) -> InputError:
    return InputError(f"Block {block} is freed while it is not live; accepted: a block that was allocated before")
