"""Blocks of device memory: how a pool splits, caches and merges them, and obtains and returns memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from ..data.rounding import round_up
from ..data.units import MIB
from .addresses import Addresses

SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT = 10 * MIB
"""From this size on, a request in the large pool gets its own segment ..."""
SEGMENT_STEP = 2 * MIB
"""... whose size is a multiple of this."""

ADDRESS_SPACE = 1 << 60
"""Address range of an expandable segment: more bytes than any device has."""


class Block:
    """Contiguous bytes: allocated, cached (free for reuse) or unmapped (addresses without memory)."""

    __slots__ = ("address", "cached", "following", "mapped", "pool", "previous", "size")

    def __init__(self, address: int, size: int, pool: Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.cached = False
        self.mapped = True
        self.previous: Block | None = None
        self.following: Block | None = None

    def split(self, size: int) -> Block:
        """Keep the first ``size`` bytes and return the rest."""
        rest = Block(self.address + size, self.size - size, self.pool)
        rest.previous, rest.following = self, self.following
        if self.following is not None:
            self.following.previous = rest
        self.following = rest
        self.size = size
        return rest

    def absorb_following(self) -> None:
        """Merge the following block into this one."""
        other = self.following
        assert other is not None
        self.size += other.size
        self.following = other.following
        if other.following is not None:
            other.following.previous = self

    @property
    def is_whole(self) -> bool:
        """Whether the block is an entire segment."""
        return self.previous is None and self.following is None

    @property
    def can_grow(self) -> bool:
        """Whether memory could be mapped right behind the block."""
        return self.following is not None and not self.following.mapped

    @property
    def reach(self) -> int:
        """Bytes of the block, plus those it could grow by."""
        return self.size + self.following.size if self.following is not None and self.can_grow else self.size

    def stretch(self) -> Iterator[Block]:
        """Yield this block and the following ones, to the end of the segment or of its mapped part."""
        block: Block | None = self
        while block is not None and block.mapped:
            yield block
            block = block.following


class Pool:
    """A pool's cached blocks by size, then address, and the unmapped blocks of its expandable segment by address.

    ``page`` is its usual segment size, and the growth step of an expandable segment; the rest of a block is split off
    from ``split_from`` bytes on.
    """

    __slots__ = ("cached", "page", "split_from", "unmapped")

    def __init__(self, page: int, split_from: int) -> None:
        self.page = page
        self.split_from = split_from
        self.cached: list[tuple[int, int, Block]] = []
        self.unmapped: list[tuple[int, Block]] = []

    def first_fit(self, size: int) -> int:
        """Return the index of the smallest cached block of at least ``size`` bytes; past the last if there is none."""
        return bisect_left(self.cached, (size,))

    def sparing_the_end(self, index: int) -> int:
        """Return the best fit's index from a first fit on; a growable block counts with all it could grow to."""
        cached = self.cached
        while (
            cached[index][2].can_grow
            and index + 1 < len(cached)
            and cached[index + 1][2].reach < cached[index][2].reach
        ):
            index += 1
        return index

    def take(self, index: int) -> Block:
        """Remove and return the cached block at an index."""
        block = self.cached.pop(index)[2]
        block.cached = False
        return block

    def remove(self, block: Block) -> None:
        """Take a block out of the cache."""
        del self.cached[bisect_left(self.cached, (block.size, block.address, block))]
        block.cached = False

    def put(self, block: Block) -> Block:
        """Cache a block, merged with its cached neighbours, and return the merged block."""
        before, after = block.previous, block.following
        if after is not None and after.cached:
            self.remove(after)
            block.absorb_following()
        if before is not None and before.cached:
            self.remove(before)
            before.absorb_following()
            block = before
        block.cached = True
        insort(self.cached, (block.size, block.address, block))
        return block

    def put_unmapped(self, block: Block) -> None:
        """Add a block without memory, merged with its unmapped neighbours."""
        before, after = block.previous, block.following
        block.mapped = False
        if after is not None and not after.mapped:
            self.remove_unmapped(after)
            block.absorb_following()
        if before is not None and not before.mapped:
            before.absorb_following()
        else:
            insort(self.unmapped, (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        """Take a block out of the unmapped ones."""
        del self.unmapped[bisect_left(self.unmapped, (block.address, block))]


class Segments(Protocol):
    """A pool's source of device memory."""

    def growth(self, pool: Pool, size: int) -> int:
        """Return the bytes the device must provide for a request that no cached block serves."""

    def grow(self, pool: Pool, size: int) -> Block:
        """Obtain these bytes and return a block that is large enough, not cached."""

    def give_back(self, pool: Pool) -> int:
        """Return everything without allocated blocks to the device, and return its bytes."""


class FixedSegments:
    """One ``cudaMalloc`` per segment, which keeps its size and is returned when entirely free."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses

    def growth(self, pool: Pool, size: int) -> int:
        """Return the size of the segment for a request."""
        if size >= OWN_SEGMENT:
            return round_up(size, SEGMENT_STEP)
        return pool.page

    def grow(self, pool: Pool, size: int) -> Block:
        """Return a new segment as one block."""
        nbytes = self.growth(pool, size)
        return Block(self.addresses.take(nbytes), nbytes, pool)

    def give_back(self, pool: Pool) -> int:
        """Return entirely free segments to the device, and return their bytes."""
        whole = [block for _, _, block in pool.cached if block.is_whole]
        for block in whole:
            pool.remove(block)
        return sum(self.release(block) for block in whole)

    def release(self, block: Block) -> int:
        """Return a segment that is a single block to the device, and return its bytes."""
        self.addresses.give(block.address, block.size)
        return block.size


class ExpandableSegments:
    """One segment per pool, mapped in pages at its end or in gaps left by an earlier shortage."""

    def __init__(self) -> None:
        self.next_address = 0

    def growth(self, pool: Pool, size: int) -> int:
        """Return the bytes to map for a request."""
        return sum(nbytes for _, nbytes in self._gaps(self._lowest_place(pool, size), pool.page, size))

    def grow(self, pool: Pool, size: int) -> Block:
        """Map the missing pages and return the block they complete."""
        block = self._lowest_place(pool, size)
        for gap, nbytes in list(self._gaps(block, pool.page, size)):
            pool.remove_unmapped(gap)
            gap.mapped = True
            if nbytes < gap.size:
                pool.put_unmapped(gap.split(nbytes))
            block = pool.put(gap)
        pool.remove(block)
        return block

    def give_back(self, pool: Pool) -> int:
        """Unmap the whole pages of cached blocks, and return their bytes."""
        returned = 0
        for block in [block for _, _, block in pool.cached]:
            begin = round_up(block.address, pool.page)
            end = (block.address + block.size) // pool.page * pool.page
            if begin < end:
                returned += end - begin
                self._unmap(block, begin, end)
        return returned

    def _unmap(self, block: Block, begin: int, end: int) -> None:
        pool = block.pool
        pool.remove(block)
        pages = block
        if begin > block.address:
            pages = block.split(begin - block.address)
        if end < pages.address + pages.size:
            rest = pages.split(end - pages.address)
            pool.put_unmapped(pages)
            pool.put(rest)
        else:
            pool.put_unmapped(pages)
        if pages is not block:
            pool.put(block)

    @staticmethod
    def _gaps(first: Block, page: int, size: int) -> Iterator[tuple[Block, int]]:
        """Yield the unmapped blocks within ``size`` bytes from ``first``, each with the bytes to map (whole pages)."""
        block: Block | None = first
        while block is not None and size > 0:
            if not block.mapped:
                yield block, min(block.size, round_up(size, page))
            size -= block.size
            block = block.following

    def _lowest_place(self, pool: Pool, size: int) -> Block:
        """Return the first block of a run of cached and unmapped blocks that is large enough."""
        if not pool.unmapped:
            pool.put_unmapped(self._segment(pool))
        for _, gap in pool.unmapped:
            before = gap.previous
            first = before if before is not None and before.cached else gap
            block: Block | None = first
            room = 0
            while room < size and block is not None and (block.cached or not block.mapped):
                room += block.size
                block = block.following
            if room >= size:
                return first
        raise AssertionError("an expandable segment has no upper limit")

    def _segment(self, pool: Pool) -> Block:
        address = round_up(self.next_address, pool.page)
        self.next_address = address + ADDRESS_SPACE
        return Block(address, ADDRESS_SPACE, pool)
