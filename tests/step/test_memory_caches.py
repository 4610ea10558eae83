"""Tensors in ``functools.lru_cache`` are counted, and none of a step's remain there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import ModelSummary, estimate_memory, measure_memory, summary
from torchsummary_plus.live import reach

pytestmark = pytest.mark.usefixtures("threads")


@lru_cache(maxsize=4)
def table(length: int) -> Tensor:
    return torch.arange(length).float().cos()


@cache
def tables(length: int) -> list[Tensor]:
    return [torch.arange(length).float().sin()]


def kept(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep results in a cache that only the closure of the new function refers to."""
    cached = lru_cache(maxsize=4)(function)

    @wraps(function)
    def wrapper(*args: Any) -> Tensor:
        return cached(*args)

    return wrapper


@kept
def hidden_table(length: int) -> Tensor:
    return torch.arange(length).float().tan()


class Hidden(nn.Module):
    """A layer whose outputs are weighted by tables in the closures of a function and of a method."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 6000)

    @staticmethod
    @kept
    def of_class(length: int) -> Tensor:
        return torch.arange(length).float().exp()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out * hidden_table(out.shape[-1]) + type(self).of_class(out.shape[-1])


@lru_cache(maxsize=1)
def name() -> object:
    return object()


@cache
def table_of_layers() -> ModelSummary:
    return summary(nn.Sequential(*(nn.Linear(16, 16) for _ in range(100))), (16,), verbose=0)


@cache
def loaded() -> nn.Module:
    return nn.Linear(16, 16)


class Positions(nn.Module):
    """A layer whose outputs are weighted by cached tables."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.layer = nn.Linear(16, length)

    def forward(self, x: Tensor) -> Tensor:
        name()
        out: Tensor = self.layer(x)
        return out * table(out.shape[-1]) + tables(out.shape[-1])[0]


def test_caches_that_decorators_hide_are_found() -> None:
    model, x = Hidden(), torch.randn(2, 16)
    peaks = [call(model, input_data=x).peak_bytes for call in (estimate_memory, measure_memory, estimate_memory)]
    assert len(set(peaks)) == 1
    assert peaks[0] >= 2 * sum(p.nbytes for p in model.parameters()) + 2 * 24_000
    assert type(hidden_table(6000)) is type(Hidden.of_class(6000)) is Tensor


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
    tables_bytes = sum(tensor.nbytes for tensor in (table(length), *tables(length)))
    assert peaks[0] == peaks[1]
    assert peaks[0] >= 2 * sum(p.nbytes for p in model.parameters()) + tables_bytes
    assert name() is first


def test_cached_results_are_not_searched_nor_cached_models_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    model, result, searched = loaded(), table_of_layers(), []
    parts = reach.parts
    monkeypatch.setattr(reach, "parts", lambda value: searched.append(value) or parts(value))  # type: ignore[func-returns-value]
    estimate_memory(Positions(16), input_data=torch.randn(2, 16))
    assert searched and not any(type(value).__module__.startswith("torchsummary_plus") for value in searched)
    assert loaded() is model and table_of_layers() is result
