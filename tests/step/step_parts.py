"""Shared by tests of a step's memory: a small model, its input, its loss, a loop of steps."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.truth.memory_truth import measure_run

WIDTH = 64


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def rows() -> Tensor:
    return torch.randn(32, WIDTH)


def squared(output: Tensor) -> Tensor:
    return output.pow(2).mean()


def truth(model: nn.Module, x: Tensor, loss: Callable[..., Tensor], *targets: Tensor) -> int:
    """The peak of a loop as people write it, by torch's profiler."""

    def run() -> None:
        for _ in range(2):
            output = model(x)
            value = loss(output, *targets)
            del output
            value.backward()
            del value
            model.zero_grad()

    return measure_run(run, [*model.parameters(), x, *targets])
