"""Tensors that ``functools.lru_cache`` keeps for a model's functions are counted, and none of a step's stays there."""

from __future__ import annotations

from functools import cache, lru_cache

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory, measure_memory

pytestmark = pytest.mark.usefixtures("threads")


@lru_cache(maxsize=4)
def table(length: int) -> Tensor:
    return torch.arange(length).float().cos()


@cache
def tables(length: int) -> list[Tensor]:
    return [torch.arange(length).float().sin()]


@lru_cache(maxsize=1)
def name() -> object:
    return object()


class Positions(nn.Module):
    """A layer whose outputs are weighted by cached tables."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.layer = nn.Linear(16, length)

    def forward(self, x: Tensor) -> Tensor:
        name()
        out: Tensor = self.layer(x)
        return out * table(out.shape[-1]) + tables(out.shape[-1])[0]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("length", [16, 6000])
def test_cached_tables_are_counted_whoever_made_them(length: int, warm: bool) -> None:
    model, x = Positions(length), torch.randn(2, 16)
    first = name()
    peaks = []
    for call in (measure_memory, estimate_memory):
        table.cache_clear()
        tables.cache_clear()
        if warm:
            model(x)
        peaks.append(call(model, input_data=x).peak_bytes)
        expected = torch.arange(length).float().cos()
        assert type(table(length)) is Tensor
        assert torch.equal(table(length), expected)
    held = sum(tensor.nbytes for tensor in (table(length), *tables(length)))
    assert peaks[0] == peaks[1]
    assert peaks[0] >= 2 * sum(p.nbytes for p in model.parameters()) + held
    assert name() is first
