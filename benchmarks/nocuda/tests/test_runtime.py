"""torch's own allocator and cuDNN's own heuristics on the no-op runtime: sizes, limits, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from benchmarks.nocuda.runtime import active_card_path, is_active
from tests.truth.releases import from_release

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not is_active(), reason="describes the no-op runtime")


def card() -> dict[str, Any]:
    description: dict[str, Any] = json.loads(active_card_path().read_text())
    return description


def test_the_card_is_the_one_of_the_file() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert properties.name == card()["name"]
    assert (properties.major, properties.minor) == (card()["major"], card()["minor"])
    assert properties.total_memory == card()["memory_mib"] * MIB
    assert properties.multi_processor_count == card()["multiprocessors"]
    assert properties.L2_cache_size == card()["l2_bytes"]
    free, total = torch.cuda.mem_get_info()
    assert total - free == card()["context_mib"] * MIB


def test_the_allocator_rounds_and_reserves_as_it_is_documented_to() -> None:
    """Blocks have 512 bytes; segments have 2 MiB up to 1 MiB, 20 MiB up to 10 MiB, then multiples of 2 MiB."""
    blocks = [torch.empty(1, device="cuda")]
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (512, 2 * MIB)
    blocks.append(torch.empty(3 * MIB, dtype=torch.int8, device="cuda"))
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (3 * MIB + 512, 22 * MIB)
    blocks.append(torch.empty(18 * MIB + 1, dtype=torch.int8, device="cuda"))
    assert torch.cuda.memory_reserved() == 42 * MIB
    free, total = torch.cuda.mem_get_info()
    assert total - free == (42 + card()["context_mib"]) * MIB
    blocks.clear()
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (0, 0)


def test_a_full_card_is_out_of_memory_at_its_limit() -> None:
    free, _ = torch.cuda.mem_get_info()
    assert free // MIB == card()["memory_mib"] - card()["context_mib"]
    block = torch.empty((free // MIB - 2) // 2 * 2 * MIB, dtype=torch.int8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=f"total capacity of {card()['memory_mib'] / 1024:.2f} GiB"):
        torch.empty(4 * MIB, dtype=torch.int8, device="cuda")
    del block
    torch.empty(4 * MIB, dtype=torch.int8, device="cuda")


def test_what_comes_back_from_the_card_is_zero() -> None:
    assert torch.ones(3, device="cuda").tolist() == [0, 0, 0]


def workspace(run: Any) -> int:
    """Return the most that a call allocates and frees again."""
    output = run()
    before = torch.cuda.memory_allocated()
    del output
    torch.cuda.reset_peak_memory_stats()
    output = run()
    assert output is not None
    return torch.cuda.max_memory_allocated() - before


def test_a_convolution_has_the_workspace_that_cudnn_names() -> None:
    """It is 0 if a kernel needs none, and large if cuDNN chooses Winograd or an implicit product's transforms."""
    with torch.no_grad():
        x = torch.empty(16, 64, 224, 224, device="cuda")
        wide = workspace(lambda: F.conv2d(x, torch.empty(64, 64, 3, 3, device="cuda"), padding=1))
        assert wide > 64 * MIB
        assert torch.backends.cudnn.version() > 90000
        with torch.backends.cudnn.flags(enabled=False):
            assert workspace(lambda: F.conv2d(x, torch.empty(64, 1, 3, 3, device="cuda"), padding=1, groups=64)) < MIB


@from_release("2.13", "the Triton kernel of outer products")
def test_a_triton_kernel_is_compiled_and_does_nothing() -> None:
    """torch multiplies columns by rows in Triton, from whatever strides, without a handle of cuBLAS."""
    column, row = torch.empty(8, 64, 1, device="cuda"), torch.empty(8, 1, 64, device="cuda")[:, :, ::2]
    assert workspace(lambda: torch.bmm(column, row)) == 0


def test_a_function_without_an_answer_fails_by_its_name() -> None:
    """It must not return 0: the plan of a Fourier transform has a workspace, whose size is unknown here."""
    with pytest.raises(RuntimeError, match=r"cuFFT|CUFFT"):
        torch.fft.fft(torch.empty(64, 64, device="cuda"))
    refused = pytest.raises(RuntimeError, match="no-op CUDA runtime: cudaStreamBeginCapture")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass


SEGMENTS = """
import torch
held = [torch.empty(30 << 20, dtype=torch.int8, device="cuda") for _ in range(3)]
del held[1]
held.append(torch.empty(50 << 20, dtype=torch.int8, device="cuda"))
print(torch.cuda.memory_reserved() >> 20, len(torch.cuda.memory_snapshot()))
"""


@pytest.mark.parametrize(("expands", "printed"), [("True", "140 1"), ("False", "140 4")])
def test_segments_expand_where_they_are_told_to(expands: str, printed: str, tmp_path: Any) -> None:
    script = tmp_path / "segments.py"
    script.write_text(SEGMENTS)
    command = [sys.executable, "-m", "benchmarks.nocuda", "--card", str(active_card_path()), str(script)]
    options = {**os.environ, "PYTORCH_ALLOC_CONF": f"expandable_segments:{expands}"}
    done = subprocess.run(command, capture_output=True, text=True, env=options)
    assert done.stdout.split("\n")[0] == printed, done.stderr
