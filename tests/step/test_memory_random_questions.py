"""Random losses that read values: checks, selections, loops; each against its real step."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.truth.memory_truth import measure_run
from torchsummary_plus.api.memory import estimate_memory

WIDTH = 32
ROWS = 16

Check = Callable[[Tensor], bool]

CHECKS: tuple[Check, ...] = (
    lambda y: not torch.isnan(y).any(),
    lambda y: bool(torch.isfinite(y.sum())),
    lambda y: not (y.exp() < 0).any(),
    lambda y: bool((y.exp() >= 0).all()),
    lambda y: y.mean() < 1e6,
    lambda y: not y.mean().item() > 1e6,
    lambda y: bool(torch.logical_and(y > -1e6, y < 1e6).all()),
    lambda y: not ((y > 1e6) | (y < -1e6)).any(),
    lambda y: not torch.equal(y, y + 1),
    lambda y: bool((y - 1e6).max() < 0),
    lambda y: int((y.abs() > 1e6).sum()) == 0,
    lambda y: (y + 3 > 1e6).nonzero().numel() <= y.numel() * 2,
)
SELECTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda y: y[y > 0].exp().sum(),
    lambda y: y.masked_select(y < 0.3).exp().sum(),
    lambda y: y[torch.where(y > 0.1)].exp().sum(),
    lambda y: y[(y.sum(-1) > 0).nonzero().flatten()].exp().sum(),
)
LOOPS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda y: sum((y * k).exp().sum() for k in range(int((y > 0).sum(-1).max()) % 4 + 1)),
    lambda y: y[:, : int((y[0] > 0).sum()) + 1].exp().sum(),
    lambda y: torch.stack([row[: n + 1].exp().sum() for row, n in zip(y, (y > 0).sum(-1).tolist())]).sum(),
)


class Loss:
    """Up to four checks, of which each raises where it does not hold, and what is worked on afterwards."""

    def __init__(self, seed: int, work: tuple[Callable[[Tensor], Tensor], ...]) -> None:
        chance = random.Random(seed)
        self.checks = chance.sample(CHECKS, chance.randrange(1, 5))
        self.work = chance.choice(work)

    def __call__(self, y: Tensor) -> Tensor:
        for check in self.checks:
            if not check(y):
                raise ValueError("a check does not hold")
        return self.work(y)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH)


def truth(loss: Loss, x: Tensor) -> int:
    model = linear()

    def run() -> None:
        for _ in range(2):
            loss(model(x)).backward()
            model.zero_grad()

    return measure_run(run, [*model.parameters(), x])


@pytest.mark.parametrize("seed", range(6))
def test_with_values_each_is_its_real_step(seed: int) -> None:
    loss, x = Loss(seed, SELECTIONS + LOOPS), torch.randn(ROWS, WIDTH)
    estimate = estimate_memory(linear(), input_data=x, loss=loss)
    assert estimate.peak_bytes == truth(loss, x)


@pytest.mark.parametrize("seed", range(6))
def test_without_values_the_range_holds_the_real_step(seed: int) -> None:
    loss, x = Loss(seed, SELECTIONS), torch.randn(ROWS, WIDTH)
    estimate = estimate_memory(linear().to("meta"), input_data=x, loss=loss)
    low, high = estimate.peak_range
    assert low <= truth(loss, x) <= high
    assert estimate.assumptions
