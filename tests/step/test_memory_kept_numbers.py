"""Numbers that nodes keep as tensors under transforms: each until its own node is freed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import vjp

from torchsummary_plus import estimate_memory, measure_memory


class Branches(nn.Module):
    """Two copies that are written to through views, with a number each; only the second is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 12), nn.Linear(12, 48)

    def forward(self, x: Tensor) -> Tensor:
        unused, used = self.first(x), self.first(x)
        unused[:, 1:].div_(2.0)
        used[0] += 1
        out: Tensor = self.last(used)
        return out


def pulled_back(model: nn.Module, x: Tensor) -> None:
    value, push = vjp(lambda given: model(given).square().mean(), x)
    (slope,) = push(torch.ones_like(value))
    model(x + slope.detach()).square().mean().backward()
    model.zero_grad()


def test_a_number_of_a_write_to_an_unused_view_is_freed_with_it() -> None:
    model, x = Branches(), torch.randn(16, 12)
    estimate = estimate_memory(model, input_data=x, train_step=pulled_back)
    assert estimate.peak_bytes == measure_memory(model, input_data=x, train_step=pulled_back).peak_bytes
    assert estimate.assumptions == ()
