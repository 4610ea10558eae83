"""Errors of a failing step name the part that failed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.step.step_parts import WIDTH, block
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import ForwardError, InputError, StepError


@of_parts(lambda: {"linear": nn.Linear(WIDTH, WIDTH)})
def Broken(self, x: Tensor) -> Tensor:
    raise KeyError("no such key")


class Unlucky(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad @ grad.new_zeros(3, 3)


@of_parts(lambda: {"inner": nn.Linear(WIDTH, WIDTH)})
def FailsBackward(self, x: Tensor) -> Tensor:
    return Unlucky.apply(self.inner(x))


def failing(*_: Any) -> Any:
    raise ValueError("not today")


class FailingOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("not today")


FAILURES: dict[str, tuple[type[Exception], str, Callable[[], nn.Module], dict[str, Any]]] = {
    "forward": (ForwardError, r"the model itself \(Broken\) failed .*no such key", Broken, {}),
    "loss": (StepError, "the loss failed: ValueError: not today", block, {"loss": failing}),
    "backward": (
        StepError,
        r"the backward of the model itself \(FailsBackward\) failed: .*reduction dim",
        FailsBackward,
        {},
    ),
    "optimizer": (StepError, "the optimizer failed: ValueError: not today", block, {"optimizer": FailingOptimizer}),
    "its making": (StepError, "the optimizer failed: ValueError: not today", block, {"optimizer": failing}),
    "train_step": (StepError, "the train_step failed: ValueError: not today", block, {"train_step": failing}),
    "no gradient": (
        InputError,
        "no floating-point output requires gradients",
        lambda: block().requires_grad_(False),
        {},
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_names_what_failed(name: str) -> None:
    kind, message, build, options = FAILURES[name]
    model = build()
    with pytest.raises(kind, match=message):
        estimate_memory(model, (WIDTH,), 2, **options)
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())
