"""The phases of a step, predicted and measured, in figures and in reports."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import nn

from torchsummary_plus import MemoryEstimate, estimate_memory, measure_memory


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
