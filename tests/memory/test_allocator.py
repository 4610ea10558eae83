"""The caching allocator's model: traces by hand, published figures, a slow model, laws, and torch's own parser."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.truth.warm import python
from torchsummary_plus.data.errors import InputError, SummaryError, UnsupportedError
from torchsummary_plus.memory.allocator import CachingAllocator, CpuAllocator, Event, Failure, replay
from torchsummary_plus.memory.allocator_options import AllocatorOptions, next_division

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
    result = replay([(0, mib(20)), (0, 0), (1, mib(19.5))], history=True)
    assert result.allocated_history == (mib(20), 0, mib(20))
    assert result.reserved_history == (mib(20),) * 3


def test_peaks_and_where() -> None:
    events = [(0, mib(30)), (0, 0), (1, mib(10)), (2, mib(20)), (1, 0)]
    result = replay(events)
    assert (result.peak_allocated_bytes, result.peak_event) == (mib(30), 0)
    assert (result.peak_reserved_bytes, result.reserved_bytes, result.allocated_bytes) == (mib(30), mib(30), mib(20))
    assert replay([]).peak_event is None


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


def test_a_failure_ends_the_replay() -> None:
    result = replay([(0, mib(40)), (0, 0), (1, mib(60)), (2, 1)], limit=mib(50), history=True)
    assert result.failed is not None
    assert result.failed.event == 2
    assert (result.allocated_bytes, result.reserved_bytes) == (0, 0)
    assert len(result.allocated_history) == len(result.reserved_history) == 2


# --- expandable segments ---------------------------------------------------------------------------------------------

EXPANDABLE = "expandable_segments:True"


def test_an_expandable_segment_grows_by_pages() -> None:
    options = AllocatorOptions.parse(EXPANDABLE)
    events = [(0, 1), (1, mib(30)), (1, 0), (2, mib(45)), (3, mib(15)), (4, 1)]
    assert replay(events, options, history=True).reserved_history == tuple(map(mib, (2, 42, 42, 62, 62, 62)))


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


# --- rounding and options --------------------------------------------------------------------------------------------


def test_torchs_own_example_of_power2_divisions() -> None:
    """Of 1024, 1280, 1536, 1792 (torch's docs); in KiB, as nothing below 512 bytes x divisions is divided."""
    assert [next_division(n, 4) for n in (1024, 1025, 1200, 1280, 1281, 1793)] == [1024, 1280, 1280, 1280, 1536, 2048]
    quarters = AllocatorOptions.parse("roundup_power2_divisions:4")
    assert quarters.rounded(1200 * KIB) == 1280 * KIB
    assert quarters.rounded(1200) == 1536
    assert AllocatorOptions().rounded(1200 * KIB) == 1200 * KIB


@pytest.mark.parametrize(
    ("options", "allocated"),
    [
        ("", 88_080_384),
        ("roundup_power2_divisions:4", 100_663_296),
        ("roundup_power2_divisions:8", 92_274_688),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 92_274_688),
        ("roundup_power2_divisions:[128:8]", 92_274_688),
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
        ("[256:1,512:2,1024:4,>:8]", "1 1 1 1 1 1 1 1 1 2 4 8 8 8 8 8"),
        ("[>:4]", "0 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4"),
        ("[1024:4,64:8]", "4 4 4 4 4 4 8 4 4 4 4 0 0 0 0 0"),
        ("[65536:4,131072:8]", "4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 8"),
        ("[]", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
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


def test_torch_accepts_and_refuses_the_same() -> None:
    """Its own parser is the oracle; in a process of its own, as it changes that process's allocator."""
    if not hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        pytest.skip("this torch does not let its allocator settings be set")
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


def test_unknown_options_name_the_accepted_ones() -> None:
    with pytest.raises(InputError) as caught:
        AllocatorOptions.parse("max_split_size:32")
    for name in ("max_split_size", "expandable_segments", "roundup_power2_divisions", "garbage_collection_threshold"):
        assert f"'{name}'" in str(caught.value)
    with pytest.raises(UnsupportedError, match="cudaMallocAsync"):
        AllocatorOptions.parse("backend:cudaMallocAsync")


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


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([(7, 10), (7, 10)], "Block 7 is allocated while it is live"),
        ([(7, 10), (7, 0), (7, 0)], "Block 7 is freed while it is not live"),
        ([(7, -1)], "accepted: 1 or more"),
    ],
)
def test_events_that_cannot_be(device: str, events: list[Event], what: str) -> None:
    with pytest.raises(InputError, match=what):
        replay(events, device=device)


def test_unknown_device() -> None:
    with pytest.raises(InputError, match="'cuda', 'cpu'"):
        replay([], device="mps")


# --- the CPU ---------------------------------------------------------------------------------------------------------


def test_the_cpu_counts_exact_bytes() -> None:
    result = replay([(0, 1001), (1, 7), (0, 0), (2, 3)], device="cpu", history=True)
    assert result.allocated_history == result.reserved_history == (1001, 1008, 7, 10)
    assert (result.peak_allocated_bytes, result.peak_event) == (1008, 1)
    assert replay([(0, 600), (1, 500)], device="cpu", limit=1000).failed == Failure(1, 500, 100)


@pytest.mark.parametrize("numel", [1, 1001, 4096])
def test_the_cpu_counts_as_torchs_profiler(numel: int) -> None:
    with torch.profiler.profile(profile_memory=True) as profiled:
        kept = torch.empty(numel, dtype=torch.uint8)
    cpu = CpuAllocator()
    cpu.allocate(0, kept.nbytes)
    assert cpu.allocated_bytes == sum(event.self_cpu_memory_usage for event in profiled.key_averages())


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
def test_a_replay_is_its_histories_summed_up(steps: list[int], options: AllocatorOptions, limit: int | None) -> None:
    events = list(trace(steps))
    result = replay(events, options, limit, history=True)
    assert result == replay(iter(events), options, limit, history=True)
    assert result.peak_allocated_bytes == max(result.allocated_history, default=0)
    assert result.peak_reserved_bytes == max(result.reserved_history, default=0)
    if result.peak_event is not None:
        assert result.allocated_history.index(result.peak_allocated_bytes) == result.peak_event
    assert len(result.allocated_history) == (len(events) if result.failed is None else result.failed.event)


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
