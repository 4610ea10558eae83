"""The model of the caching allocator: hand-worked traces, published figures, limits, errors, speed."""

from __future__ import annotations

import time

import pytest
import torch

from tests.memory.replays import Event, Failure, replay, replay_in
from torchsummary_plus.data.errors import InputError
from torchsummary_plus.memory.allocator import Allocator, CachingAllocator, CpuAllocator
from torchsummary_plus.memory.allocator_options import AllocatorOptions

KIB, MIB = 1024, 1024 * 1024


def mib(count: float) -> int:
    return round(count * MIB)


def cut(allocator: CachingAllocator) -> list[list[tuple[int, bool]]]:
    """The blocks of each segment: (bytes, allocated?)."""
    return [list(segment.blocks) for segment in allocator.segments()]


def in_mib(allocator: CachingAllocator) -> list[list[tuple[float, bool]]]:
    return [[(nbytes / MIB, used) for nbytes, used in blocks] for blocks in cut(allocator)]


def filled(*sizes: int, options: str = "", limit: int | None = None) -> CachingAllocator:
    """An allocator with blocks 0, 1, 2 ... of these sizes."""
    allocator = CachingAllocator(AllocatorOptions.parse(options), limit)
    for block, nbytes in enumerate(sizes):
        assert allocator.allocate(block, nbytes) == 0
    return allocator


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "allocated", "reserved"),
    [
        (1, 512, mib(2)),
        (512, 512, mib(2)),
        (513, 1024, mib(2)),
        (MIB, MIB, mib(2)),
        (MIB + 1, MIB + 512, mib(20)),
        (mib(10) - 1, mib(10), mib(10)),
        (mib(9), mib(9), mib(20)),
        (mib(10), mib(10), mib(10)),
        (mib(10) + 1, mib(10) + 512, mib(12)),
        (mib(11.5), mib(12), mib(12)),
        (mib(19) - 512, mib(19) - 512, mib(20)),
        (mib(19), mib(20), mib(20)),
    ],
)
def test_one_request(nbytes: int, allocated: int, reserved: int) -> None:
    """Rounding decides the segment; a remainder of 1 MiB or less stays with its block in the large pool."""
    result = replay([(0, nbytes)])
    assert (result.allocated_bytes, result.reserved_bytes) == (allocated, reserved)


def test_the_published_snapshot() -> None:
    """A small training step: the blocks of one 2 MiB segment, and cuBLAS's workspace at the head of a 20 MiB one."""
    allocator = filled(40_000, 400, 4_000, 400, 8, 8_519_680)
    assert cut(allocator) == [
        [(40_448, True), (512, True), (4_096, True), (512, True), (512, True), (2_051_072, False)],
        [(8_519_680, True), (12_451_840, False)],
    ]
    assert allocator.reserved_bytes == mib(22)


def test_best_fit_is_the_smallest_then_the_lowest() -> None:
    allocator = filled(mib(4), mib(2), mib(3), mib(2), mib(2), mib(7))
    for block in (0, 2, 4):
        allocator.free(block)
    allocator.allocate(6, mib(2))  # fits 4, 3 and 2 MiB
    assert in_mib(allocator) == [
        [(4, False), (2, True), (3, False), (2, True), (2, True), (7, True)],
    ]
    allocator.free(1)
    allocator.allocate(7, mib(3))  # 4 + 2 + 3 have become 9
    assert in_mib(allocator)[0][:2] == [(3, True), (6, False)]


def test_freed_neighbours_become_one_block() -> None:
    allocator = filled(*[mib(4)] * 5)
    for block in (1, 3, 2):
        allocator.free(block)
    assert in_mib(allocator) == [[(4, True), (12, False), (4, True)]]
    allocator.allocate(5, mib(12))
    assert allocator.reserved_bytes == mib(20)


def test_segments_never_join() -> None:
    """Two segments of 20 MiB, both free, do not serve 30 MiB."""
    events = [(0, mib(20)), (1, mib(20)), (0, 0), (1, 0), (2, mib(30))]
    assert replay(events).reserved_bytes == mib(70)


def test_the_pools_do_not_share() -> None:
    """1 MiB comes from the small pool, though the large one has room."""
    assert replay([(0, mib(5)), (1, MIB)]).reserved_bytes == mib(22)


def test_an_unsplit_block_is_reused_whole() -> None:
    """20 MiB serve 19.5: what is left is too little to be split off, so that memory_allocated counts 20."""
    result = replay([(0, mib(20)), (0, 0), (1, mib(19.5))])
    assert result.allocated == (mib(20), 0, mib(20))
    assert result.reserved == (mib(20),) * 3


# --- a limit ---------------------------------------------------------------------------------------------------------


def test_free_segments_go_back_when_the_limit_is_met() -> None:
    result = replay([(0, mib(100)), (0, 0), (1, mib(120))], limit=mib(150))
    assert result.failed is None
    assert (result.reserved_bytes, result.peak_reserved_bytes) == (mib(120), mib(120))


def test_a_segment_in_use_does_not() -> None:
    """15 of its 20 MiB are free, 5 and 10 apart; 12 MiB fit neither there nor beside it."""
    events = [(0, mib(5)), (1, mib(5)), (0, 0), (2, mib(12))]
    assert replay(events, limit=mib(30)).failed == Failure(event=3, nbytes=mib(12), missing_bytes=mib(2))
    assert replay(events, limit=mib(32)).failed is None


def test_what_is_missing_is_what_was_missing() -> None:
    """With so many bytes more the same request succeeds, and with one fewer it does not."""
    events = [(0, mib(100)), (1, mib(5)), (2, 700), (3, mib(60)), (4, mib(7))]
    failed = replay(events, limit=mib(150)).failed
    assert failed == Failure(event=3, nbytes=mib(60), missing_bytes=mib(32))
    after = replay(events, limit=mib(150) + failed.missing_bytes)
    assert after.failed is None
    assert replay(events, limit=mib(150) + failed.missing_bytes - 1).failed is not None


def test_a_failed_request_has_emptied_the_cache() -> None:
    result = replay([(0, mib(40)), (0, 0), (1, mib(60)), (2, 1)], limit=mib(50))
    assert result.failed is not None
    assert result.failed.event == 2
    assert result.allocated == (mib(40), 0)


# --- expandable segments ---------------------------------------------------------------------------------------------

EXPANDABLE = "expandable_segments:True"


def test_an_expandable_segment_grows_by_pages() -> None:
    options = AllocatorOptions.parse(EXPANDABLE)
    events = [(0, 1), (1, mib(30)), (1, 0), (2, mib(45)), (3, mib(15)), (4, 1)]
    assert replay(events, options).reserved == tuple(map(mib, (2, 42, 42, 62, 62, 62)))


def test_an_expandable_segment_splits_from_512_bytes_on() -> None:
    allocator = filled(mib(19.5), mib(15), options=EXPANDABLE)
    assert in_mib(allocator) == [[(19.5, True), (15, True), (5.5, False)]]
    assert allocator.allocated_bytes == mib(34.5)


def test_the_end_is_spared_while_another_block_fits() -> None:
    """3 MiB fit the 4 at the end better; but that end can grow, so that the 8 MiB in front are taken."""
    allocator = filled(mib(8), mib(8), options=EXPANDABLE)
    allocator.free(0)
    allocator.allocate(2, mib(3))
    assert in_mib(allocator) == [[(3, True), (5, False), (8, True), (4, False)]]


def test_free_pages_go_back_and_leave_a_gap() -> None:
    allocator = filled(*[mib(20)] * 3, options=EXPANDABLE, limit=mib(60))
    allocator.free(1)
    assert allocator.allocate(3, mib(30)) == mib(20)  # 40 MiB at the end, 20 of which the freed page has
    assert in_mib(allocator) == [[(20, True)], [(20, True)]]
    assert allocator.reserved_bytes == mib(40)
    assert allocator.allocate(3, mib(15)) == 0  # the gap is the lowest place
    assert in_mib(allocator) == [[(20, True), (15, True), (5, False), (20, True)]]


def test_less_than_a_page_stays() -> None:
    allocator = filled(mib(15), mib(15), mib(10), options=EXPANDABLE)
    allocator.free(1)
    allocator.empty_cache()  # free from 15 to 30: no whole page of 20
    assert allocator.reserved_bytes == mib(40)
    allocator.free(2)
    allocator.empty_cache()
    assert in_mib(allocator) == [[(15, True), (5, False)]]


def test_pages_follow_large_segment_size() -> None:
    assert replay([(0, mib(2))], AllocatorOptions.parse("large_segment_size_mb:12")).reserved_bytes == mib(12)
    options = AllocatorOptions.parse(EXPANDABLE + ",large_segment_size_mb:12")
    assert replay([(0, mib(30))], options).reserved_bytes == mib(36)


# --- max_split_size --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "options", "allocated", "reserved"),
    [
        (10, "max_split_size_mb:32", 10, 110),  # 100 MiB serve no request that could be split
        (95, "max_split_size_mb:32", 100, 100),  # nor are they split ...
        (70, "max_split_size_mb:32", 70, 170),  # ... nor taken where 20 MiB or more would be left
        (70, "max_split_size_mb:32,max_non_split_rounding_mb:64", 100, 100),
        (70, "max_split_size_mb:128", 70, 100),
        (70, "", 70, 100),
    ],
)
def test_max_split_size(nbytes: int, options: str, allocated: int, reserved: int) -> None:
    """What a cached block of 100 MiB is good for."""
    result = replay([(0, mib(100)), (0, 0), (1, mib(nbytes))], AllocatorOptions.parse(options))
    assert (result.allocated_bytes, result.reserved_bytes) == (mib(allocated), mib(reserved))


def test_only_the_oversize_blocks_that_are_needed_go_back() -> None:
    events = [(0, mib(50)), (1, mib(60)), (2, mib(70)), (0, 0), (1, 0), (2, 0), (3, mib(100))]
    result = replay(events, AllocatorOptions.parse("max_split_size_mb:40"), limit=mib(220))
    assert result.reserved_bytes == mib(50 + 100)  # 70 and 60 are gone
    assert replay(events, limit=mib(220)).reserved_bytes == mib(100)  # without the option all are


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", [CachingAllocator, CpuAllocator])
@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([(7, 10), (7, 10)], "Block 7 is allocated while it is live"),
        ([(7, 10), (7, 0), (7, 0)], "Block 7 is freed while it is not live"),
        ([(7, -1)], "accepted: 1 or more"),
    ],
)
def test_impossible_events(allocator: type[Allocator], events: list[Event], what: str) -> None:
    with pytest.raises(InputError, match=what):
        replay_in(allocator(), events)


# --- the CPU ---------------------------------------------------------------------------------------------------------


def test_the_cpu_counts_exact_bytes() -> None:
    result = replay_in(CpuAllocator(), [(0, 1001), (1, 7), (0, 0), (2, 3)])
    assert result.allocated == result.reserved == (1001, 1008, 7, 10)
    assert result.peak_reserved_bytes == 1008
    assert replay_in(CpuAllocator(1000), [(0, 600), (1, 500)]).failed == Failure(1, 500, 100)


@pytest.mark.parametrize("numel", [1, 1001, 4096])
def test_the_cpu_counts_as_torchs_profiler(numel: int) -> None:
    with torch.profiler.profile(profile_memory=True) as profiled:
        block = torch.empty(numel, dtype=torch.uint8)
    cpu = CpuAllocator()
    cpu.allocate(0, block.nbytes)
    assert cpu.allocated_bytes == sum(event.self_cpu_memory_usage for event in profiled.key_averages())


# --- speed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", EXPANDABLE])
def test_time_per_event_does_not_grow_with_the_blocks(options: str) -> None:
    """Ten times the live and cached blocks, the same number of events: far from ten times the time."""

    def seconds(blocks: int) -> float:
        sizes = [512 * (1 + number * 7919 % 4000) for number in range(blocks)]
        events = list(enumerate(sizes)) + [(number, 0) for number in range(0, blocks, 2)]
        for turn in range(20_000):
            old = turn * 2 % blocks
            events += [(blocks + turn, sizes[old]), (blocks + turn, 0)]
        return min(timed(events) for _ in range(3)) / len(events)

    def timed(events: list[tuple[int, int]]) -> float:
        start = time.process_time()
        replay(events, AllocatorOptions.parse(options))
        return time.process_time() - start

    assert seconds(20_000) < 5 * seconds(2_000)
