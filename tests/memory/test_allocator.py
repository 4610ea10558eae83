"""The model of the caching allocator: hand-worked traces, recordings of torch's own, laws, limits, errors, options."""

import json
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cuda.allocator import ROOM_MIB, SETTINGS, differences, program, read
from tests.memory.replays import Event, Failure, replay, replay_in, segments
from tests.truth.releases import from_release
from tests.truth.warm import python
from torchsummary_plus.data.errors import InputError, SummaryError
from torchsummary_plus.memory.allocator import Allocator, AllocatorOptions, CachingAllocator, CpuAllocator

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


RECORDED = read()


def test_every_setting_is_recorded_on_a_card_with_room_and_on_a_full_one() -> None:
    assert set(RECORDED) == {f"{setting} {room}".strip() for setting in SETTINGS for room in ROOM_MIB}
    failed = dict.fromkeys(ROOM_MIB, 0)
    for number, (name, events) in enumerate(RECORDED.items()):
        assert [(block, nbytes) for block, nbytes, *_ in events] == list(program(number))
        before = (0, *(allocated for _, _, allocated, _ in events))
        refused = sum(bool(nbytes) and allocated == old for old, (_, nbytes, allocated, _) in zip(before, events))
        failed[name.split()[-1]] += refused
    assert failed["roomy"] == 0 and failed["tight"] > 200


@pytest.mark.parametrize("name", RECORDED)
def test_the_model_takes_and_gives_back_what_torch_does(name: str) -> None:
    assert differences(name, RECORDED[name]) == []


@pytest.mark.parametrize(
    ("options", "allocated"),
    [
        ("", 88_080_384),
        ("roundup_power2_divisions:4", 100_663_296),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 92_274_688),
        ("roundup_power2_divisions:[32:8,>:1]", 88_080_384),
    ],
)
def test_power2_divisions_by_interval(options: str, allocated: int) -> None:
    """84 MiB, as in torch's own test of these settings (test_cuda.py, test_allocator_settings)."""
    assert replay([(0, 84 * MIB)], AllocatorOptions.parse(options)).allocated_bytes == allocated


@pytest.mark.parametrize(
    ("value", "table"),
    [
        ("4", "4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4"),
        ("[64:8,256:4,1024:4,>:1]", "8 8 8 8 8 8 8 0 4 0 4 1 1 1 1 1"),
        ("[1024:4,64:8]", "4 4 4 4 4 4 8 4 4 4 4 0 0 0 0 0"),
        ("[65536:4,131072:8]", "4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 8"),
    ],
)
def test_division_lists_are_read_as_torch_reads_them(value: str, table: str) -> None:
    """The tables are those that libc10 of torch 2.13 holds after reading the same text."""
    options = AllocatorOptions.parse(f"roundup_power2_divisions:{value}")
    assert options.roundup_power2_divisions == tuple(map(int, table.split()))


def test_every_option_at_once() -> None:
    options = AllocatorOptions.parse(
        " expandable_segments: True, roundup_power2_divisions:[64:8, >:2],max_split_size_mb:64,"
        "max_non_split_rounding_mb:48,large_segment_size_mb:32,garbage_collection_threshold:0.8,backend:native,"
    )
    assert options == AllocatorOptions(
        expandable_segments=True,
        roundup_power2_divisions=(8,) * 7 + (2,) * 9,
        max_split_bytes=mib(64),
        max_non_split_rounding_bytes=mib(48),
        large_segment_bytes=mib(32),
        ignored=("garbage_collection_threshold",),
    )
    assert AllocatorOptions.parse("") == AllocatorOptions()


ACCEPTED = [
    "max_split_size_mb:20",
    "large_segment_size_mb:12,max_split_size_mb:12",
    "max_split_size_mb:33,large_segment_size_mb:33",
    "roundup_power2_divisions:16",
    "roundup_power2_divisions:[64:0,128:8]",
    "garbage_collection_threshold:0.8",
    "pinned_use_background_threads:True",
    "expandable_segments:False",
]

REFUSED = [
    "max_split_size_mb:19",
    "max_split_size_mb:32,large_segment_size_mb:33",
    "max_non_split_rounding_mb:5",
    "large_segment_size_mb:10",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[65:8]",
    "roundup_power2_divisions:[64:3]",
    "roundup_power2_divisions:[64:8,>:2",
    "expandable_segments:true",
    "garbage_collection_threshold:1.2",
    "max_split_size_mb",
    "max_split_size_mb:",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    AllocatorOptions.parse(text)


@pytest.mark.parametrize("text", [*REFUSED, "max_split_size_mb:32x", "max_split_size_mb:-1", "pinned_free_catch_all:1"])
def test_refused(text: str) -> None:
    with pytest.raises(InputError, match="accepted: "):
        AllocatorOptions.parse(text)


@from_release("2.11", "large_segment_size_mb")
def test_torch_accepts_and_refuses_the_same() -> None:
    """Its own parser is the oracle; in a process of its own, as it changes that process's allocator."""
    code = (
        "import json, sys, torch\n"
        "def accepts(text):\n"
        "    try:\n"
        "        torch._C._accelerator_setAllocatorSettings('large_segment_size_mb:20,max_non_split_rounding_mb:20')\n"
        "        torch._C._accelerator_setAllocatorSettings(text)\n"
        "    except Exception:\n"
        "        return False\n"
        "    return True\n"
        "print(json.dumps([accepts(text) for text in json.loads(sys.argv[1])]))"
    )
    done = subprocess.run(
        [*python(), "-c", code, json.dumps([*ACCEPTED, *REFUSED])], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [True] * len(ACCEPTED) + [False] * len(REFUSED)


@pytest.mark.parametrize("value", ["backend:cudaMallocAsync", "max_split_size:32"])
def test_an_error_in_the_environment_names_the_variable_and_how_to_go_on(value: str) -> None:
    with pytest.raises(SummaryError, match=rf"PYTORCH_CUDA_ALLOC_CONF is set to '{value}'.*pass allocator="):
        AllocatorOptions.from_environment({"PYTORCH_CUDA_ALLOC_CONF": value})


def test_the_environment_is_read_as_torch_reads_it() -> None:
    """PYTORCH_ALLOC_CONF alone where both are set (c10/core/AllocatorConfig.cpp)."""
    new, old = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
    assert AllocatorOptions.from_environment({}) == AllocatorOptions()
    assert AllocatorOptions.from_environment({old: EXPANDABLE}).expandable_segments
    both = AllocatorOptions.from_environment({old: EXPANDABLE, new: "max_split_size_mb:64"})
    assert both == AllocatorOptions(max_split_bytes=mib(64))


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
