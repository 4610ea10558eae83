"""A model of torch's CUDA caching allocator for one device; no memory is touched.

A request is rounded up to 512 bytes and served from the small pool (up to 1 MiB) or the large pool: by the smallest
cached block that fits, of the oldest segment or with the lowest address, else from a new segment of
2 MiB (small), 20 MiB (under 10 MiB) or its own size rounded up to 2 MiB. The rest of a block is split off, in the large
pool only if it exceeds 1 MiB; otherwise the whole block counts as allocated. A freed block merges with its free
neighbours. Segments are kept until the device is out of memory; then entirely free segments are returned to it and the
request is retried.

With ``expandable_segments`` each pool has one segment, mapped in pages of 2 or 20 MiB, that grows at its end.

Each stream has its own pools: a freed block serves only requests of the stream it was allocated in.

Of equally large cached blocks, torch takes that of the oldest segment since torch 2.13. Earlier releases take the one
with the lowest address, so that the driver's addresses decide which blocks are split: of 205 histories that an H100
recorded with torch 2.11, 177 have the same peak of reserved bytes as here, which is up to 12 % off for the others
(benchmarks/data/gpu_truth_nvidia_h100*).

Source: c10/cuda/CUDACachingAllocator.cpp of pytorch/pytorch, as of early 2026; the headers of torch 2.11, 2.12 and
2.13 have the same constants and options for device memory. A block given to another stream by ``record_stream`` is
free again at once here (:func:`held_back` has the other extreme). Not modelled: private pools (of CUDA graphs) and the
upper limit of an expandable segment (1 1/8 of the GPU's memory).

Options have the syntax of ``PYTORCH_ALLOC_CONF``: c10/core/AllocatorConfig.{h,cpp} and c10/cuda/CUDAAllocatorConfig.h;
after torch 2.11 came ``throw_on_cudamalloc_oom``, after 2.12 ``pinned_max_round_threshold_mb`` and
``pinned_max_cached_size_mb`` for host memory.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from ..data.errors import InputError, UnsupportedError, choice_error
from ..data.units import MIB, MIN_BLOCK, SMALL_REQUEST, describe, power_of_two_below, round_up

ENDLESS = 1 << 62
"""The limit if none is given, and the size up to which blocks may be split."""


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
        """Allocate and return 0, or return how much too low the limit is."""
        assert nbytes > 0 and block not in self._live
        total = self.allocated_bytes + nbytes
        if total > self._limit:
            return total - self._limit
        self._live[block] = nbytes
        self.allocated_bytes = self.reserved_bytes = total
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, total)
        return 0

    def free(self, block: int) -> None:
        """Free a block."""
        self.allocated_bytes = self.reserved_bytes = self.allocated_bytes - self._live.pop(block)


class CachingAllocator:
    """The CUDA allocator: allocated <= reserved <= limit, and blocks never overlap.

    >>> cuda = CachingAllocator()
    >>> cuda.allocate(0, 1_000), cuda.allocate(1, 1 << 20)
    (0, 0)
    >>> cuda.allocated_bytes, cuda.reserved_bytes
    (1049600, 2097152)
    """

    def __init__(self, options: AllocatorOptions | None = None, limit: int | None = None) -> None:
        self.options = options = options or AllocatorOptions()
        self.allocated_bytes = self.reserved_bytes = self.peak_reserved_bytes = 0
        self._limit = ENDLESS if limit is None else limit
        self._max_split = options.max_split_bytes or ENDLESS
        self._max_spare = options.max_non_split_rounding_bytes or options.large_segment_bytes
        self._expandable = options.expandable_segments
        self._segments = ExpandableSegments() if self._expandable else FixedSegments()
        self._pools: dict[int, tuple[Pool, Pool]] = {0: self._new_pools()}
        """By stream: the small and the large pool."""
        self._live: dict[int, Block] = {}

    def allocate(self, block: int, nbytes: int, stream: int = 0) -> int:
        """Allocate and return 0; else empty the cache and return how many bytes too low the limit is."""
        assert nbytes > 0 and block not in self._live
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
        """Return the block to the cache, merged with its cached neighbours."""
        freed = self._live.pop(block)
        self.allocated_bytes -= freed.size
        freed.pool.put(freed)

    def empty_cache(self) -> None:
        """Return to the device all segments, or pages of an expandable one, without allocated blocks."""
        for pool in (pool for small, large in self._pools.values() for pool in (large, small)):
            self.reserved_bytes -= self._segments.give_back(pool)

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
        for attempt in range(3):
            if attempt == 1 and not self._release_oversize(pool, size):
                continue
            if attempt == 2:
                self.empty_cache()
            reserved = self.reserved_bytes + self._segments.growth(pool, size)
            if reserved <= self._limit:
                self.reserved_bytes = reserved
                self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
                return self._segments.grow(pool, size)
        return None

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Return just enough of the unsplittable cached blocks to the device, if any."""
        if self._expandable or self._max_split == ENDLESS:
            return False
        wanted = max(size, self._max_split)
        index = pool.first_fit(wanted)
        if index < len(pool.cached):
            self.reserved_bytes -= pool.take(index).size
            return True
        released = 0
        while released < wanted and pool.cached and pool.cached[-1][0] >= self._max_split:
            released += pool.take(-1).size
        self.reserved_bytes -= released
        return released >= wanted


Allocator = CachingAllocator | CpuAllocator


SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT = 10 * MIB
"""From this size on, a request in the large pool gets its own segment ..."""
SEGMENT_STEP = 2 * MIB
"""... whose size is a multiple of this."""

ADDRESS_SPACE = 1 << 60
"""Address range of an expandable segment: more bytes than any device has."""


class Block:
    """Contiguous bytes: allocated, cached (free for reuse) or unmapped (cached addresses without memory)."""

    __slots__ = ("address", "cached", "following", "mapped", "pool", "previous", "size")

    def __init__(self, address: int, size: int, pool: Pool, mapped: bool = True) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.cached = False
        self.mapped = mapped
        self.previous: Block | None = None
        self.following: Block | None = None

    def split(self, size: int) -> Block:
        """Keep the first ``size`` bytes and return the rest."""
        rest = Block(self.address + size, self.size - size, self.pool, self.mapped)
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
    def can_grow(self) -> bool:
        """Whether memory could be mapped right behind the block."""
        return self.following is not None and not self.following.mapped

    @property
    def reach(self) -> int:
        """Bytes of the block, plus those it could grow by."""
        return self.size + self.following.size if self.following is not None and self.can_grow else self.size


class Pool:
    """A pool's cached blocks by size, then address, and those of its expandable segment without memory.

    ``page`` is its usual segment size, and the growth step of an expandable segment; the rest of a block is split off
    from ``split_from`` bytes on.
    """

    __slots__ = ("cached", "page", "split_from", "unmapped")

    def __init__(self, page: int, split_from: int) -> None:
        self.page = page
        self.split_from = split_from
        self.cached: list[tuple[int, int, Block]] = []
        self.unmapped: list[tuple[int, int, Block]] = []

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
        """Take a block out of the cache, or of the unmapped ones."""
        blocks = self.cached if block.mapped else self.unmapped
        del blocks[bisect_left(blocks, (block.size, block.address, block))]
        block.cached = False

    def put(self, block: Block) -> Block:
        """Cache a block, merged with neighbours that are cached or unmapped as it is, and return the merged block."""
        before, after = block.previous, block.following
        if after is not None and after.cached and after.mapped == block.mapped:
            self.remove(after)
            block.absorb_following()
        if before is not None and before.cached and before.mapped == block.mapped:
            self.remove(before)
            before.absorb_following()
            block = before
        block.cached = True
        insort(self.cached if block.mapped else self.unmapped, (block.size, block.address, block))
        return block


class FixedSegments:
    """One ``cudaMalloc`` per segment, which keeps its size and is returned when entirely free.

    Addresses ascend with the age of the segment, and none is used twice.
    """

    def __init__(self) -> None:
        self.next_address = 0

    def growth(self, pool: Pool, size: int) -> int:
        """Return the size of the segment for a request."""
        if size >= OWN_SEGMENT:
            return round_up(size, SEGMENT_STEP)
        return pool.page

    def grow(self, pool: Pool, size: int) -> Block:
        """Return a new segment as one block."""
        nbytes, address = self.growth(pool, size), self.next_address
        self.next_address += nbytes
        return Block(address, nbytes, pool)

    def give_back(self, pool: Pool) -> int:
        """Return entirely free segments to the device, and return their bytes."""
        whole = [block for _, _, block in pool.cached if block.previous is block.following is None]
        for block in whole:
            pool.remove(block)
        return sum(block.size for block in whole)


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
            pool.remove(gap)
            if nbytes < gap.size:
                pool.put(gap.split(nbytes))
            gap.mapped = True
            block = pool.put(gap)
        pool.remove(block)
        return block

    def give_back(self, pool: Pool) -> int:
        """Unmap the whole pages of cached blocks, and return their bytes."""
        returned = 0
        for block in [block for _, _, block in pool.cached]:
            begin = round_up(block.address, pool.page)
            end = (block.address + block.size) // pool.page * pool.page
            if begin >= end:
                continue
            returned += end - begin
            pool.remove(block)
            pages = block.split(begin - block.address) if begin > block.address else block
            rest = pages.split(end - begin) if end < pages.address + pages.size else None
            pages.mapped = False
            pool.put(pages)
            for part in (rest, None if pages is block else block):
                if part is not None:
                    pool.put(part)
        return returned

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
            address = round_up(self.next_address, pool.page)
            self.next_address = address + ADDRESS_SPACE
            pool.put(Block(address, ADDRESS_SPACE, pool, mapped=False))
        for _, _, gap in sorted(pool.unmapped, key=itemgetter(1)):
            before = gap.previous
            first = before if before is not None and before.cached else gap
            block: Block | None = first
            room = 0
            while room < size and block is not None and block.cached:
                room += block.size
                block = block.following
            if room >= size:
                return first
        raise AssertionError("an expandable segment has no upper limit")


INTERVALS = 16
"""Number of intervals of ``roundup_power2_divisions``: below 2 MiB, [2, 4) MiB, ... from 32 GiB up."""

ENVIRONMENT = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that torch reads; only the first one set counts."""


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """Settings of the caching allocator; the defaults are torch's.

    ``roundup_power2_divisions`` is empty or has one number per interval (0: off). Without ``max_split_bytes`` every
    block may be split; ``max_non_split_rounding_bytes`` defaults to ``large_segment_bytes``. ``ignored`` lists accepted
    options that are not modelled. Raises InputError for values that torch rejects.

    >>> AllocatorOptions(expandable_segments=True).large_segment_bytes
    20971520
    """

    expandable_segments: bool = False
    roundup_power2_divisions: tuple[int, ...] = ()
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None
    large_segment_bytes: int = 20 * MIB
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        divisions, large = self.roundup_power2_divisions, self.large_segment_bytes
        if len(divisions) not in (0, INTERVALS) or not all(n == 0 or is_power_of_two(n) for n in divisions):
            raise InputError(
                f"roundup_power2_divisions is {divisions}; accepted: {INTERVALS} numbers, each 0 or a power of 2"
            )
        if large <= 10 * MIB:
            raise InputError(f"large_segment_size_mb is {large / MIB:g}; accepted: more than 10")
        for name, value in (
            ("max_split_size_mb", self.max_split_bytes),
            ("max_non_split_rounding_mb", self.max_non_split_rounding_bytes),
        ):
            if value is not None and value < large:
                raise InputError(
                    f"{name} is {value / MIB:g}; accepted: at least {large / MIB:g} (large_segment_size_mb)"
                )

    @classmethod
    def parse(cls, text: str) -> AllocatorOptions:
        """Parse ``name:value,name:value`` as in ``PYTORCH_ALLOC_CONF``; sizes there are in MiB.

        Raises InputError for an unknown option or value, UnsupportedError for a backend other than the native one.

        >>> AllocatorOptions.parse("expandable_segments:True,max_split_size_mb:128").max_split_bytes
        134217728
        """
        fields: dict[str, object] = {}
        ignored: list[str] = []
        bare, position = re.sub(r"\s", "", text), 0
        while position < len(bare):
            match = PAIR.match(bare, position)
            if match is None:
                raise InputError(
                    f"allocator is {describe(text)}; accepted: name:value,name:value, such as expandable_segments:True"
                )
            name, value, position = match[1], match[2], match.end()
            if name in MODELLED:
                field, read = MODELLED[name]
                fields[field] = read(name, value)
            elif name in NOT_MODELLED:
                NOT_MODELLED[name](name, value)
                ignored.append(name)
            elif name != "backend":
                raise choice_error("allocator option", name, (*MODELLED, "backend", *NOT_MODELLED))
            elif value != "native":
                raise UnsupportedError(f"backend:{value} is not modelled; accepted: backend:native")
        return cls(**fields, ignored=tuple(ignored))  # type: ignore[arg-type]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> AllocatorOptions:
        """Return the options that torch would read in this process, or the defaults if no variable is set.

        Raises what :meth:`parse` raises, with the variable's name.

        >>> AllocatorOptions.from_environment({"PYTORCH_ALLOC_CONF": "max_split_size_mb:32"}).max_split_bytes
        33554432
        """
        for name in ENVIRONMENT:
            if name in environment:
                try:
                    return cls.parse(environment[name])
                except (InputError, UnsupportedError) as error:
                    cure = "to assume torch's default allocator instead, pass allocator='backend:native'"
                    raise type(error)(f"{error}. {name} is set to {describe(environment[name])}; {cure}") from error
        return cls()

    def rounded(self, nbytes: int) -> int:
        """Return a request's block size, before any larger block has to serve it.

        >>> AllocatorOptions().rounded(1_200)
        1536
        >>> AllocatorOptions.parse("roundup_power2_divisions:4").rounded(1_200 * 1024) // 1024
        1280
        """
        if self.roundup_power2_divisions:
            interval = min(max(nbytes.bit_length() - 21, 0), INTERVALS - 1)
            divisions = self.roundup_power2_divisions[interval]
            if divisions > 1 and nbytes > MIN_BLOCK * divisions:  # Up to that many steps between two powers of 2.
                return round_up(nbytes, power_of_two_below(nbytes) // divisions)
        return round_up(nbytes, MIN_BLOCK)


def is_power_of_two(number: int) -> bool:
    """Whether a number is a power of 2."""
    return number > 0 and number & (number - 1) == 0


PAIR = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")
"""An option and its value, a list with its brackets."""


def _flag(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise choice_error(name, value, ("True", "False"))
    return value == "True"


def _whole(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise InputError(f"{name} is {describe(value)}; accepted: a whole number")
    return int(value)


def _fraction(name: str, value: str) -> float:
    if not re.fullmatch(r"0*(0|1|0?\.[0-9]+|1\.0*)", value):
        raise InputError(f"{name} is {describe(value)}; accepted: a number from 0 to 1")
    return float(value)


def _mebibytes(name: str, value: str) -> int:
    return _whole(name, value) * MIB


def _divisions(name: str, value: str) -> tuple[int, ...]:
    """Return one number for all intervals, or read a list ``[64:8,256:4,>:1]`` of MiB and divisions as torch does.

    The first entry also covers everything below it, ">" everything above the last; unnamed intervals in between stay
    off.
    """
    if not value.startswith("["):
        number = _whole(name, value)
        if not is_power_of_two(number):
            raise InputError(f"{name} is {number}; accepted: a power of 2")
        return (number,) * INTERVALS
    table, last, first = [0] * INTERVALS, 0, True
    for start, _, text in (entry.partition(":") for entry in value[1:-1].split(",") if entry):
        begins = 0 if start == ">" else _whole(name, start)
        if start != ">" and not is_power_of_two(begins):
            raise InputError(f"{name} has an interval at {begins} MiB; accepted: powers of 2")
        number = _whole(name, text)
        if start == ">":
            table[last + 1 :] = [number] * (INTERVALS - last - 1)
            continue
        last = min(begins.bit_length() - 1, INTERVALS - 1)
        if first:
            table[:last] = [number] * last
        table[last], first = number, False
    return tuple(table)


Reader = Callable[[str, str], object]
"""Reads an option's name and value; raises InputError for an invalid value."""

MODELLED: dict[str, tuple[str, Reader]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "max_split_size_mb": ("max_split_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "large_segment_size_mb": ("large_segment_bytes", _mebibytes),
}
"""Option -> the field it sets and its reader."""

NOT_MODELLED: dict[str, Reader] = {
    "garbage_collection_threshold": _fraction,
    "graph_capture_record_stream_reuse": _flag,
    "per_process_memory_fraction": _fraction,
    "pinned_free_catch_all": _flag,
    "pinned_max_cached_size_mb": _whole,
    "pinned_max_round_threshold_mb": _whole,
    "pinned_num_register_threads": _whole,
    "pinned_reserve_segment_size_mb": _whole,
    "pinned_use_background_threads": _flag,
    "pinned_use_cuda_host_register": _flag,
    "release_lock_on_cudamalloc": _flag,
    "throw_on_cudamalloc_oom": _flag,
}
"""Accepted and ignored. Host memory, locks and graphs do not affect device memory, and a memory fraction is the
caller's limit; ``garbage_collection_threshold`` only acts under such a fraction, by freeing cached segments early."""
