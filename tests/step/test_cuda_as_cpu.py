"""CUDA steps that name devices and depend on values, which a real step on the CPU supplies."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import estimate_memory


@of_parts(lambda device: {"layer": nn.Linear(8, 8), "device": device})
def Picks(self, x: Tensor) -> Tensor:
    """Makes tensors on CUDA by name, and repeats itself by a value."""
    y = self.layer(x)
    offsets = torch.zeros(len(x), 8, device=self.device)
    for _ in range(int((y > 0).sum().item()) % 3 + 1):
        y = y + offsets
    return y[torch.where(y + offsets > -torch.inf)[0]]


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0), 0], ids=str)
def test_a_forward_that_names_cuda_gets_its_values(device: Any) -> None:
    estimate = estimate_memory(Picks(device), (8,), 16, device="cuda", optimizer="sgd")
    taken = [line for line in estimate.assumptions if "taken from a real step" in line]
    assert [line.split()[0] for line in taken] == ["_local_scalar_dense", "nonzero"]


@of_parts(lambda: {"encoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), 1)})
def Padded(self, x: Tensor) -> Tensor:
    """In eval, torch asks whether the mask is left-aligned, which no fake kernel answers."""
    mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    return self.encoder(x, src_key_padding_mask=mask)  # type: ignore[no-any-return]


def test_kernels_of_the_cpu_leave_a_range_with_room_for_cublas() -> None:
    estimate = estimate_memory(Padded(), (16, 64), 2, device="cuda", gpu="H100", mode="eval")
    assert estimate.assumptions[0].startswith("estimated with the CPU's kernels")
    low, high = estimate.peak_range
    assert low <= estimate.peak_bytes and high >= estimate.peak_bytes + (64 << 20)
    assert estimate.assumptions[1].startswith("measured in a real step on the CPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU, whose statistics are read")
@pytest.mark.parametrize("reads", [False, True])
def test_statistics_of_the_gpu_are_empty_where_there_is_none(reads: bool) -> None:
    """Also in a step that reads values."""

    def step(model: nn.Module, x: Tensor) -> None:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        with torch.cuda.nvtx.range("forward"):
            out = model(x).sum()
        if reads and out.reshape(1).numpy(force=True)[0] > 1e9:
            return
        out.backward()
        model.zero_grad()
        assert not torch.cuda.memory_summary() and not torch.cuda.memory_snapshot()
        torch.cuda.ipc_collect()
        if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_allocated"):
            torch.accelerator.synchronize()
            assert not torch.accelerator.memory_allocated()

    own = torch.cuda.reset_peak_memory_stats, torch.cuda.memory_summary
    estimate = estimate_memory(nn.Linear(8, 8), (8,), 2, "cuda", train_step=step, gpu="T4")
    plain = estimate_memory(nn.Linear(8, 8), (8,), 2, "cuda", loss=torch.sum, gpu="T4")
    assert estimate.peak_bytes == plain.peak_bytes
    assert own == (torch.cuda.reset_peak_memory_stats, torch.cuda.memory_summary)
