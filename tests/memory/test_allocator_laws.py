"""The model of the caching allocator: invariants at every event, and a slow reference model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.replays import Event
from tests.memory.test_allocator import EXPANDABLE, KIB, MIB, mib
from torchsummary_plus.memory.allocator import CachingAllocator
from torchsummary_plus.memory.allocator_options import AllocatorOptions

# --- laws ------------------------------------------------------------------------------------------------------------

UNHURRIED = settings(deadline=None)
"""The machines that run this are shared."""

SIZES = st.one_of(
    st.integers(1, 4 * KIB), st.integers(1, 2 * MIB), st.integers(1, 64 * MIB), st.sampled_from([MIB, mib(10), mib(20)])
)
STEPS = st.lists(st.one_of(SIZES, st.integers(-1000, -1)), max_size=60)
OPTIONS = st.sampled_from(
    [
        "",
        EXPANDABLE,
        "roundup_power2_divisions:4",
        "max_split_size_mb:24",
        "large_segment_size_mb:32,max_split_size_mb:40,roundup_power2_divisions:[1:8,16:2,>:4]",
        EXPANDABLE + ",roundup_power2_divisions:8,max_split_size_mb:20",
    ]
).map(AllocatorOptions.parse)
LIMITS = st.one_of(st.none(), st.integers(mib(2), mib(400)))


def trace(steps: list[int]) -> Iterator[Event]:
    """A number above 0 allocates so many bytes, one below frees one of the live blocks."""
    live: list[int] = []
    for number, step in enumerate(steps):
        if step > 0:
            live.append(number)
            yield number, step
        elif live:
            yield live.pop(step % len(live)), 0


@UNHURRIED
@given(STEPS, OPTIONS, LIMITS)
def test_laws_at_every_event(steps: list[int], options: AllocatorOptions, limit: int | None) -> None:
    """allocated <= reserved <= limit; segments hold all that is reserved; blocks never overlap; no byte is lost."""
    allocator, requested = CachingAllocator(options, limit), {}
    for block, nbytes in trace(steps):
        if nbytes:
            before = allocator.allocated_bytes
            if allocator.allocate(block, nbytes):
                assert allocator.allocated_bytes == before
                break
            requested[block] = nbytes
        else:
            before = allocator.reserved_bytes
            allocator.free(block)
            del requested[block]
            assert allocator.reserved_bytes == before
        assert sum(requested.values()) <= allocator.allocated_bytes <= allocator.reserved_bytes
        assert limit is None or allocator.reserved_bytes <= limit
        segments = allocator.segments()
        assert sum(segment.nbytes for segment in segments) == allocator.reserved_bytes
        assert sum(n for s in segments for n, used in s.blocks if used) == allocator.allocated_bytes
        assert all(a or b for s in segments for (_, a), (_, b) in pairwise(s.blocks)), "two free neighbours"
        assert all(a.address + a.nbytes <= b.address for a, b in pairwise(segments)), "segments overlap"
        spans = sorted((b.address, b.address + b.size) for b in allocator._live.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "blocks overlap"
        assert all(requested[number] <= block.size for number, block in allocator._live.items())


@UNHURRIED
@given(STEPS, OPTIONS)
def test_all_freed_is_zero_and_the_cache_can_be_emptied(steps: list[int], options: AllocatorOptions) -> None:
    allocator, live = CachingAllocator(options), set()
    for block, nbytes in trace(steps):
        if nbytes:
            allocator.allocate(block, nbytes)
            live.add(block)
        else:
            allocator.free(block)
            live.remove(block)
    peak = allocator.reserved_bytes
    for block in sorted(live):
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    assert allocator.reserved_bytes == peak
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    assert allocator.segments() == ()


@UNHURRIED
@given(STEPS, OPTIONS, LIMITS)
def test_missing_bytes_are_exact(steps: list[int], options: AllocatorOptions, limit: int | None) -> None:
    """With a limit so many bytes higher a second try succeeds; with one byte less it fails."""
    allocator = CachingAllocator(options, limit)
    for block, nbytes in trace(steps):
        if not nbytes:
            allocator.free(block)
        elif missing := allocator.allocate(block, nbytes):
            allocator._limit += missing - 1
            assert allocator.allocate(block, nbytes) == 1
            allocator._limit += 1
            assert allocator.allocate(block, nbytes) == 0
            assert allocator.reserved_bytes == allocator._limit
            return


@UNHURRIED
@given(st.integers(1, 1 << 40), st.sampled_from([1, 2, 4, 8, 16]))
def test_rounding_laws(nbytes: int, divisions: int) -> None:
    """Up, to a multiple of 512, by less than 512 or than one division; what is rounded stays as it is."""
    for options in (AllocatorOptions(), AllocatorOptions(roundup_power2_divisions=(divisions,) * 16)):
        size = options.rounded(nbytes)
        assert nbytes <= size
        assert size % 512 == 0
        assert size - nbytes < max(512, nbytes / divisions if options.roundup_power2_divisions else 0)
        assert options.rounded(size) == size


# --- a second opinion ------------------------------------------------------------------------------------------------


class SlowAllocator:
    """The rules of the module's docstring, written down as naively as possible: every search looks at every block."""

    def __init__(self, limit: int | None) -> None:
        self.segments: list[list[list[int]]] = []  # of [bytes, block's number or -1]
        self.limit = limit

    @property
    def reserved(self) -> int:
        return sum(nbytes for segment in self.segments for nbytes, _ in segment)

    @property
    def allocated(self) -> int:
        return sum(nbytes for segment in self.segments for nbytes, owner in segment if owner >= 0)

    def is_small(self, segment: list[list[int]]) -> bool:
        return sum(nbytes for nbytes, _ in segment) == mib(2)

    def allocate(self, block: int, nbytes: int) -> bool:
        size = -(-nbytes // 512) * 512
        small = size <= MIB
        fits = [
            (free, number, place)
            for number, segment in enumerate(self.segments)
            for place, (free, owner) in enumerate(segment)
            if owner < 0 and free >= size and self.is_small(segment) == small
        ]
        if not fits:
            segment_bytes = mib(2) if small else mib(20) if size < mib(10) else -(-size // mib(2)) * mib(2)
            if self.limit is not None and self.reserved + segment_bytes > self.limit:
                self.segments = [s for s in self.segments if any(owner >= 0 for _, owner in s)]
                if self.reserved + segment_bytes > self.limit:
                    return False
            self.segments.append([[segment_bytes, -1]])
            fits = [(segment_bytes, len(self.segments) - 1, 0)]
        free, number, place = min(fits)
        rest = free - size
        if rest >= (512 if small else MIB + 1):
            self.segments[number][place : place + 1] = [[size, block], [rest, -1]]
        else:
            self.segments[number][place][1] = block
        return True

    def free(self, block: int) -> None:
        for segment in self.segments:
            for entry in segment:
                if entry[1] == block:
                    entry[1] = -1
            for place in range(len(segment) - 1, 0, -1):
                if segment[place][1] < 0 and segment[place - 1][1] < 0:
                    segment[place - 1][0] += segment.pop(place)[0]


@settings(max_examples=300, deadline=None)
@given(STEPS, LIMITS)
def test_the_slow_model_agrees(steps: list[int], limit: int | None) -> None:
    fast, slow = CachingAllocator(limit=limit), SlowAllocator(limit)
    for block, nbytes in trace(steps):
        if nbytes:
            failed = fast.allocate(block, nbytes) > 0
            assert failed == (not slow.allocate(block, nbytes))
            if failed:
                break
        else:
            fast.free(block)
            slow.free(block)
        assert (fast.allocated_bytes, fast.reserved_bytes) == (slow.allocated, slow.reserved)
    assert sorted(len(segment.blocks) for segment in fast.segments()) == sorted(map(len, slow.segments))
