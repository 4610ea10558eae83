"""The caching allocator's options: rounding, torch's own parser, and the environment."""

import json
import subprocess

import pytest

from tests.memory.replays import replay
from tests.memory.test_allocator import EXPANDABLE, MIB, mib
from tests.truth.releases import from_release
from tests.truth.warm import python
from torchsummary_plus.data.errors import InputError, SummaryError
from torchsummary_plus.memory.allocator_options import AllocatorOptions


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
