"""The model of the caching allocator: invariants at every event, and a slow reference model."""

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.replays import Event, segments
from tests.memory.test_allocator import EXPANDABLE, KIB, MIB, mib
from torchsummary_plus.memory.allocator import CachingAllocator
from torchsummary_plus.memory.allocator_options import AllocatorOptions

UNHURRIED = settings(max_examples=50, deadline=None)
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
        held = segments(allocator)
        assert sum(segment.nbytes for segment in held) == allocator.reserved_bytes
        assert sum(n for s in held for n, used in s.blocks if used) == allocator.allocated_bytes
        assert all(a or b for s in held for (_, a), (_, b) in pairwise(s.blocks)), "two free neighbours"
        assert all(a.address + a.nbytes <= b.address for a, b in pairwise(held)), "segments overlap"
        spans = sorted((b.address, b.address + b.size) for b in allocator._live.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "blocks overlap"
        assert all(requested[number] <= block.size for number, block in allocator._live.items())


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
