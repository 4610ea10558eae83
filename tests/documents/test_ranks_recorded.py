"""One rank's memory is what an interposed allocator records in real processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ranks.truth import SAME_KERNELS
from tests.truth.releases import runs_fully_shard
from tests.truth.warm import python
from torchsummary_plus.live.compat import since

ROOT = Path(__file__).parents[2]
RECORDED = (
    *("llama ddp", "llama ddp view", "llama zero", "llama fsdp", "llama fsdp keep", "llama fsdp accumulate"),
    *("llama fsdp checkpoint", "llama fsdp clip", "llama fsdp tied", "llama tp", "cnn ddp", "cnn fsdp"),
    *("llama fsdp1", "llama fsdp1 grad op orig", "llama fsdp1 bf16 orig", "cnn fsdp1 accumulate orig"),
    *("llama sp", "pipeline 1f1b", "pipeline interleaved", "llama experts one-hot", "llama ring"),
    *("llama lightning", "llama bunched", "llama two stages", "llama gossip batched"),
)
if not since("2.13") or since("2.15"):  # The truth was recorded on 2.13; a stage's buffers are others since 2.15.
    RECORDED = tuple(name for name in RECORDED if "pipeline" not in name)
if not since("2.8"):  # Streams of the CPU record no events, and half precision takes other amounts.
    NOT_YET = ("llama fsdp", "llama fsdp1 bf16 orig", "llama bunched", "cnn fsdp")
    SHARDED = tuple(f"llama fsdp {how}" for how in ("keep", "accumulate", "checkpoint", "clip", "tied"))
    RECORDED = tuple(name for name in RECORDED if name not in NOT_YET + SHARDED)


def benchmark(*words: str) -> str:
    command = [*python(), "-W", "ignore", "-m", "benchmarks.ranks.truth", "--ranks", "0", *words]
    environment = {**os.environ, **SAME_KERNELS}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_peaks_are_those_of_real_processes() -> None:
    """To the byte, in a world of two, as an interposed allocator has recorded them."""
    told = benchmark("--world", "2", "--exactly", *RECORDED)
    assert told.splitlines()[-1] == f"{len(RECORDED)} of {len(RECORDED)} exact", told


@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="an allocator is compiled for Linux")
@runs_fully_shard
def test_a_peak_is_that_of_processes_that_run_now() -> None:
    told = benchmark("--world", "2", "--explain", "--exactly", "cnn fsdp")
    assert told.splitlines()[-1] == "1 of 1 exact", told
