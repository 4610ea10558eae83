"""Operators in which torch.nn wraps Python code, on CUDA."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.live.versions import since

OPTIONS: Any = getattr(nn, "LinearCrossEntropyOptions", None)


class Model(nn.Module):
    def __init__(self, options: Any, reduction: str) -> None:
        super().__init__()
        self.tokens, self.body = nn.Embedding(32_000, 512), nn.Linear(512, 512)
        self.head = nn.Linear(512, 32_000, bias=False)
        self.options, self.reduction = options, reduction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.body(self.tokens(x)).flatten(0, 1)
        how: Any = {"options": self.options, "reduction": self.reduction}
        loss: torch.Tensor = F.linear_cross_entropy(states, self.head.weight, x.flatten(), **how)
        return loss.sum()


def train(model: nn.Module, x: torch.Tensor) -> None:
    model(x).backward()
    model.zero_grad()


def infer(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x)


@from_release("2.13", "linear_cross_entropy")
@pytest.mark.skipif(since("2.14"), reason="recorded on torch 2.13; its chunks differ from 2.14 on")
@pytest.mark.parametrize(
    ("step", "reduction", "dtype", "options", "peak"),
    [
        (train, "mean", torch.bfloat16, {}, 216_032_768),
        (train, "none", torch.float32, {"acc_policy": "accurate"}, 363_880_960),
        (infer, "mean", torch.bfloat16, {}, 113_666_048),
    ],
)
def test_in_chunks(
    step: Callable[..., None], reduction: str, dtype: torch.dtype, options: dict[str, Any], peak: int
) -> None:
    """Torch 2.13 allocates these peaks on the no-op H100 (benchmarks/nocuda)."""
    with torch.device("meta"):
        model = Model(OPTIONS(**options), reduction).to(dtype)
        x = torch.zeros(8, 512, dtype=torch.long)
    estimate = estimate_memory(model, input_data=x, train_step=step, steps=2, gpu="H100", progress=False)
    assert (estimate.peak_bytes, estimate.peak_range, estimate.unknown) == (peak, (peak, peak), ())
