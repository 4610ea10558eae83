"""The package's own CUDA code on the no-op runtime: measuring, tracking, the allocator's history."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.cuda.history import reduce_history, replay_history
from tests.truth.releases import from_release
from torchsummary_plus import MemTracker, estimate_memory, measure_memory


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_measured_is_the_step_predicted(optimizer: str) -> None:
    name = torch.cuda.get_device_name()
    predicted = estimate_memory(perceptron(), (256,), 64, "cuda", optimizer=optimizer, gpu=name, progress=False)
    measured = measure_memory(perceptron().cuda(), (256,), 64, "cuda", optimizer=optimizer)
    assert measured.info.measured
    assert measured.peak_bytes == predicted.peak_bytes
    assert measured.reserved_bytes == predicted.reserved_bytes
    assert not [note for note in measured.assumptions if "allocator's own peak" in note]


class Grouped(nn.Module):
    """Attention in which two heads of keys serve eight of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(64, 64 * heads) for heads in (8, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x).unflatten(-1, (-1, 64)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return nn.functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)


PLANNED = from_release("2.13", "a cuDNN that plans grouped attention on the no-op runtime")


@pytest.mark.parametrize("autocast", [None, pytest.param(torch.float16, marks=PLANNED)], ids=str)
def test_grouped_attention_measured_is_as_predicted(autocast: torch.dtype | None) -> None:
    """By the kernels that the installed torch chooses, with the states that these keep."""
    options = {"optimizer": "sgd", "autocast": autocast}
    name = torch.cuda.get_device_name()
    predicted = estimate_memory(Grouped(), (256, 64), 4, "cuda", gpu=name, progress=False, **options)
    measured = measure_memory(Grouped().cuda(), (256, 64), 4, "cuda", **options)
    assert measured.peak_bytes == predicted.peak_bytes


class Sampler(nn.Module):
    """Images sampled at points that depend on them, which cuDNN does where the corners are aligned."""

    def __init__(self, aligns: bool) -> None:
        super().__init__()
        self.aligns = aligns
        self.points = nn.Linear(64, 6)
        self.layer = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        matrices = self.points(x[:, 0, 0, :64]).view(-1, 2, 3)
        grid = nn.functional.affine_grid(matrices, list(x.shape), align_corners=self.aligns)
        out: Tensor = self.layer(nn.functional.grid_sample(x, grid, align_corners=self.aligns))
        return out


@pytest.mark.parametrize("changes", [{"mode": "eval"}, {}, {"autocast": torch.float16}], ids=str)
@pytest.mark.parametrize("aligns", [True, False])
def test_sampling_measured_is_as_predicted(aligns: bool, changes: dict[str, Any]) -> None:
    size, name = (3, 96, 96), torch.cuda.get_device_name()
    predicted = estimate_memory(Sampler(aligns), size, 4, "cuda", gpu=name, progress=False, **changes)
    measured = measure_memory(Sampler(aligns).cuda(), size, 4, "cuda", **changes)
    assert measured.peak_bytes == predicted.peak_bytes
    assert measured.reserved_bytes == predicted.reserved_bytes


def test_a_model_measured_is_left_unchanged() -> None:
    model = perceptron().cuda()
    before = {name: (p.data_ptr(), p._version, p.grad) for name, p in model.named_parameters()}
    measure_memory(model, (256,), 64, "cuda", optimizer="sgd")
    assert {name: (p.data_ptr(), p._version, p.grad) for name, p in model.named_parameters()} == before


def test_the_tracker_sees_what_the_allocator_gives() -> None:
    tracker = MemTracker(stream=io.StringIO(), device="cuda")
    first = tracker.track("before")
    block = torch.empty(1 << 20, device="cuda")
    second = tracker.track("after")
    tracker.close()
    assert second.tensor_bytes - first.tensor_bytes == block.nbytes
    assert [group.nbytes for group in second.appeared] == [block.nbytes]
    assert second.memory is not None and first.memory is not None
    assert second.memory.allocated_bytes - first.memory.allocated_bytes == block.nbytes
    assert second.memory.reserved_bytes == torch.cuda.memory_reserved()


def test_the_allocator_model_replays_torchs_own_history() -> None:
    torch.cuda.memory._record_memory_history(context=None, max_entries=100_000, clear_history=True)
    model = perceptron().cuda()
    for batch in (64, 5000, 900):
        model(torch.empty(batch, 256, device="cuda")).sum().backward()
    history = reduce_history(torch.cuda.memory._snapshot())
    torch.cuda.memory._record_memory_history(enabled=None)
    assert len(history) > 50
    assert replay_history(history) == []
