"""What each module adds to a step: figures worked out by hand, and sums that hold for every model."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.truth.memory_truth import storage_bytes
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.memory.attribution import Footprint
from torchsummary_plus.memory.estimate import ModuleMemory
from torchsummary_plus.results.memory_estimate import MemoryEstimate


class Tied(nn.Module):
    """Token ids in, scores of tokens out by the same weight; one layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        return self.head(self.layer(self.layer(x)))


def named(estimate: MemoryEstimate) -> dict[str, ModuleMemory]:
    return {module.path: module for module in estimate.by_module}


def test_a_layer_and_its_activation_by_hand() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    result = named(estimate_memory(model, (8,), 3, "cuda", optimizer="adam"))
    floats = 4 * 3
    assert result["0"].own == Footprint(4 * floats, 0, 36 * 4, 36 * 4, 2 * 36 * 4)
    assert result["1"].own == Footprint(4 * floats, 4 * floats)
    assert result["2"].own == Footprint(4 * floats, 4 * floats + 4 * 3)
    assert result["3"].own == Footprint(2 * floats, 0, 10 * 4, 10 * 4, 2 * 10 * 4)


def test_the_step_counts_of_adam_are_on_the_cpu_unless_it_is_fused() -> None:
    model = nn.Linear(8, 4)
    state_bytes = [
        estimate_memory(model, (8,), 3, device, optimizer=optimizer).by_module[0].own.optimizer_bytes
        for device, optimizer in (
            ("cpu", "adam"),
            ("cuda", "adam"),
            ("cuda", lambda p: torch.optim.Adam(p, fused=True)),
        )
    ]
    assert state_bytes == [2 * 36 * 4 + 8, 2 * 36 * 4, 2 * 36 * 4 + 8]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_tied_weight_stands_with_its_first_holder_once(device: str) -> None:
    model = Tied()
    result = named(estimate_memory(model, (5,), 3, device, optimizer="sgd"))
    weight = 11 * 8 * 4
    assert (result["words"].own.param_bytes, result["words"].own.grad_bytes) == (weight, weight)
    assert (result["head"].own.param_bytes, result["head"].own.grad_bytes) == (0, 0)
    assert result[""].inclusive.param_bytes == storage_bytes(model.parameters())


def test_a_module_called_twice_adds_both_calls_and_one_gradient() -> None:
    result = named(estimate_memory(Tied(), (5,), 3, "cpu"))
    row = 3 * 5 * 8 * 4
    assert result["layer.1"].own == Footprint(output_bytes=2 * row, saved_bytes=2 * row)
    assert result["layer.0"].own.grad_bytes == (8 * 8 + 8) * 4
    assert result["layer"].own == Footprint()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_own_footprints_add_up_to_the_inclusive_ones(mode: str) -> None:
    estimate = estimate_memory(Tied(), (5,), 3, "cpu", mode=mode, optimizer="adamw")
    for field in fields(Footprint):
        own = sum(getattr(module.own, field.name) for module in estimate.by_module)
        assert getattr(estimate.by_module[0].inclusive, field.name) == own
    layer = named(estimate)
    assert layer["layer"].inclusive == layer["layer"].own + layer["layer.0"].own + layer["layer.1"].own


def test_a_segment_that_runs_again_owns_nothing_after_it_has_stopped_early() -> None:
    """Non-reentrant checkpointing leaves the calls of a segment by an exception, once all that was saved is back."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.second, self.first(x), use_reentrant=False)

    estimate = estimate_memory(Checkpointed(), (8,), 3, "cuda", optimizer="adamw")
    moments = [moment for moment in estimate.log.moments if moment.phase == "optimizer"]
    assert moments and {moment.module for moment in moments} == {-1}
