"""What each module adds to a step, worked out by hand, and the phases of a step, predicted and measured."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.parts import of_parts
from tests.truth.memory_truth import storage_bytes
from torchsummary_plus import MemoryEstimate, estimate_memory, measure_memory
from torchsummary_plus.memory.estimate import ModuleMemory


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


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))


def phases(estimate: MemoryEstimate, step: int = 1) -> list[str]:
    return [phase for phase, _ in groupby(point.phase for point in estimate.timeline if point.step == step)]


def accumulating(model: nn.Module, x: torch.Tensor) -> None:
    for _ in range(2):
        model(x).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer.step()
    optimizer.zero_grad()


def penalised(model: nn.Module, x: torch.Tensor) -> None:
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.square().sum().backward()
    x.grad = None
    model.zero_grad()


TRAINED = ["forward", "backward", "optimizer", "end"]

STEPS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an optimizer": ({"optimizer": "adamw"}, TRAINED),
    "none": ({}, ["forward", "backward", "end"]),
    "the output kept": ({"optimizer": "sgd", "keep_output": True}, ["forward", "backward", "end"]),
    "inference": ({"mode": "eval"}, ["forward", "end"]),
    "accumulation": ({"train_step": accumulating}, [*["forward", "backward", "end"] * 2, "optimizer", "end"]),
}


@pytest.mark.parametrize("take", [estimate_memory, measure_memory])
@pytest.mark.parametrize("name", STEPS)
def test_every_event_is_of_its_phase(take: Callable[..., MemoryEstimate], name: str) -> None:
    options, expected = STEPS[name]
    result = take(net(), (64,), 128, **options)
    assert phases(result) == expected
    assert result.log.moments[result.log.events[-1][0]].phase == "end"


@pytest.mark.parametrize("take", [estimate_memory, measure_memory])
def test_gradients_inside_a_loss_do_not_end_the_forward(take: Callable[..., MemoryEstimate]) -> None:
    result = take(net(), (64,), 128, train_step=penalised)
    assert phases(result) == ["forward", "backward", "forward", "backward", "end"]


def test_memory_that_a_step_gives_back_at_its_end_is_no_forward_s() -> None:
    estimate = estimate_memory(nn.Linear(64, 64), (64,), 512, optimizer="adamw")
    points = [point for point in estimate.timeline if point.step == 1]
    forward = [dict(point.live)["gradients"] for point in points if point.phase == "forward"]
    assert forward and not any(forward)
    assert any(dict(point.live)["gradients"] for point in points if point.phase == "end")
