"""Steps that torch partly compiles or traces, and steps that a gradient scaler may skip."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import linearize

from tests.parts import of_parts
from tests.truth.memory_truth import measure
from tests.truth.releases import from_release
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.live.compat import since

WIDTH = 64
ROWS = 32

needs_compiler = pytest.mark.skipif(not since("2.13"), reason="torch compiles these operators itself since 2.13")


@of_parts(lambda: {"first": nn.Linear(WIDTH, WIDTH), "second": nn.Linear(WIDTH, WIDTH)})
def Branching(self, x: Tensor) -> Tensor:
    """Has the gradients of a branch, whose parameters are not the operator's operands."""
    h = self.first(x)
    out: Tensor = torch.cond(h.sum() > 1e9, lambda y: self.second(y).sin(), lambda y: y.sin().cos() * 2, (h,))
    return out


@of_parts(lambda: {"linear": nn.Linear(WIDTH, WIDTH)})
def Linearised(self, x: Tensor) -> Tensor:
    out, tangent = linearize(lambda y: self.linear(y).tanh(), x)
    return out + tangent(torch.ones_like(x))


@needs_compiler
def test_what_torch_compiles_itself_is_measured_as_compiled_before() -> None:
    model, adam, x = Branching(), torch.optim.Adam, torch.randn(ROWS, WIDTH)
    estimate = estimate_memory(model, (WIDTH,), batch_size=ROWS, optimizer=adam)
    torch._dynamo.reset()
    first, again = (measure(model, (x,), "train", adam) for _ in range(2))
    assert estimate.peak_bytes == again <= first
    assert any("the first compilation in a process" in said for said in estimate.assumptions)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_linearised_functions_constants_are_kept_until_they_are_collected(mode: str) -> None:
    model, x = Linearised(), torch.randn(ROWS, WIDTH)
    estimate = estimate_memory(model, (WIDTH,), batch_size=ROWS, mode=mode)
    low, high = estimate.peak_range
    assert low <= measure(model, (x,), mode) <= high
    assert any("reference cycles" in said for said in estimate.assumptions)


def scaled_step(scale: float) -> Callable[[nn.Module, Tensor], None]:
    tensors: list[Any] = []

    def step(model: nn.Module, x: Tensor) -> None:
        if not tensors:
            tensors.extend((torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=scale)))
        optimizer, scaler = tensors
        with torch.autocast("cpu", torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


@from_release("2.11", "the release that half-precision rules were measured on")
@pytest.mark.parametrize(("scale", "edge"), [(8.0, 1), (2.0**30, 0)])
def test_the_range_holds_the_step_that_a_gradient_scaler_skips(scale: float, edge: int) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))
    estimate = estimate_memory(model, (WIDTH,), batch_size=8, train_step=scaled_step(scale))
    real = measure_memory(model, (WIDTH,), batch_size=8, train_step=scaled_step(scale))
    assert real.peak_bytes == estimate.peak_range[edge]
    assert estimate.peak_range[1] == estimate.peak_bytes
    assert any("skip the optimizer's step" in said for said in estimate.assumptions)
