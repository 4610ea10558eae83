"""Multiply-adds of a training step: the usual ratio of 2:1, torch's own counter, frozen layers."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18
from torchsummary_plus import MemoryEstimate, estimate_memory, summary


def by_torch(model: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """Multiply-adds of a forward and of its backward, as torch's counter counts them when they run for real."""
    with FlopCounterMode(display=False) as forward:
        loss = model(x).sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops() // 2, backward.get_total_flops() // 2


CASES: dict[str, tuple[Any, Any]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), lambda: torch.randn(3, 8)),
    "resnet18": (resnet18, lambda: torch.randn(2, 3, 32, 32)),
    "gpt2": (lambda: GPT2(Config(32, 2, 4, 50, 16)), lambda: torch.randint(50, (2, 12))),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), lambda: torch.randn(2, 3, 5, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward_are_what_torch_counts(name: str) -> None:
    build, make = CASES[name]
    step = estimate_memory(build(), input_data=make(), optimizer="sgd")
    assert step.mult_adds is not None and not step.log.uncounted
    assert (step.mult_adds["forward"], step.mult_adds["backward"]) == by_torch(build(), make())
    assert step.total_train_mult_adds == sum(step.mult_adds.values())


def test_frozen_layers_are_cheaper() -> None:
    """A frozen layer below all others has no backward; one in between has the gradient of its input alone."""

    def cost(*frozen: int) -> int:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
        for index in frozen:
            model[index].requires_grad_(False)
        done = estimate_memory(model, (8,), batch_size=2).mult_adds
        assert done is not None
        return done["backward"] // (2 * 8 * 8)

    assert (cost(), cost(0), cost(1), cost(0, 1)) == (5, 3, 4, 1)


def test_a_summary_with_memory_has_it() -> None:
    model = nn.Linear(8, 4)
    assert summary(model, (8,), 2, memory="train", verbose=0).total_train_mult_adds == 2 * 2 * 8 * 4
    assert summary(model, (8,), 2, verbose=0).total_train_mult_adds is None
    assert estimate_memory(model, (8,), mode="eval").total_train_mult_adds is None
    step = estimate_memory(model, (8,))
    assert MemoryEstimate.from_json(step.to_json()).mult_adds == step.mult_adds
