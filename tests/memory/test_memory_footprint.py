"""What each module adds to a step: figures worked out by hand, and sums that hold for every model."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.parts import of_parts
from tests.truth.memory_truth import storage_bytes
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.memory.estimate import ModuleMemory
from torchsummary_plus.results.memory_estimate import MemoryEstimate


class Tied(nn.Module):
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


def test_a_segment_that_runs_again_owns_nothing_after_it_has_stopped_early() -> None:
    """Non-reentrant checkpointing leaves the calls of a segment by an exception, once all that was saved is back."""

    @of_parts(lambda: {"first": nn.Linear(8, 8), "second": nn.Sequential(nn.Linear(8, 8), nn.ReLU())})
    def Checkpointed(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.second, self.first(x), use_reentrant=False)

    estimate = estimate_memory(Checkpointed(), (8,), 3, "cuda", optimizer="adamw")
    moments = [moment for moment in estimate.log.moments if moment.phase == "optimizer"]
    assert moments and {moment.module for moment in moments} == {-1}
