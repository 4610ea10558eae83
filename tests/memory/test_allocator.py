"""The model of the caching allocator: hand-worked traces, published figures, limits, errors, speed."""

import time

import pytest
import torch

from tests.memory.replays import Event, Failure, replay, replay_in, segments
from torchsummary_plus.memory.allocator import Allocator, CachingAllocator, CpuAllocator
from torchsummary_plus.memory.allocator_options import AllocatorOptions

KIB, MIB = 1024, 1024 * 1024


def mib(count: float) -> int:
    return round(count * MIB)


def cut(allocator: CachingAllocator) -> list[list[tuple[int, bool]]]:
    """The blocks of each segment: (bytes, allocated?)."""
    return [list(segment.blocks) for segment in segments(allocator)]


def filled(*sizes: int, options: str = "", limit: int | None = None) -> CachingAllocator:
    """An allocator with blocks 0, 1, 2 ... of these sizes."""
    allocator = CachingAllocator(AllocatorOptions.parse(options), limit)
    for block, nbytes in enumerate(sizes):
        assert allocator.allocate(block, nbytes) == 0
    return allocator


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


EXPANDABLE = "expandable_segments:True"


@pytest.mark.parametrize("allocator", [CachingAllocator, CpuAllocator])
@pytest.mark.parametrize(
    "events", [[(7, 10), (7, 10)], [(7, 10), (7, 0), (7, 0)], [(7, -1)]], ids=["live", "not live", "negative"]
)
def test_impossible_events_are_not_counted(allocator: type[Allocator], events: list[Event]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        replay_in(allocator(), events)


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


@pytest.mark.parametrize("options", ["", EXPANDABLE])
def test_time_per_event_does_not_grow_with_the_blocks(options: str) -> None:
    """Ten times the live and cached blocks, the same number of events: far from ten times the time."""

    def seconds(blocks: int) -> float:
        sizes = [512 * (1 + number * 7919 % 4000) for number in range(blocks)]
        events = list(enumerate(sizes)) + [(number, 0) for number in range(0, blocks, 2)]
        for turn in range(10_000):
            old = turn * 2 % blocks
            events += [(blocks + turn, sizes[old]), (blocks + turn, 0)]
        return min(timed(events) for _ in range(2)) / len(events)

    def timed(events: list[tuple[int, int]]) -> float:
        start = time.process_time()
        replay(events, AllocatorOptions.parse(options))
        return time.process_time() - start

    assert seconds(10_000) < 6 * seconds(1_000)
