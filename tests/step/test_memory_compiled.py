"""Compiled code: estimated as its source, which an assumption says, in an open range."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.compiled.estimate import is_known_release
from torchsummary_plus.data.memory_records import COMPILED, HOW_COMPILED

Made = tuple[nn.Module, dict[str, Any]]


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.LayerNorm(64))


def in_place() -> Made:
    model = plain()
    model[1].compile()
    return model, {}


def by_function() -> Made:
    @torch.compile
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()  # type: ignore[no-any-return]

    return plain(), {"train_step": lambda model, x: loss(model, x).backward()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.compile(plain()), {}),
        lambda: (nn.Sequential(torch.compile(plain()), nn.Linear(64, 2)), {"mode": "eval"}),
        in_place,
        by_function,
    ],
)
@from_release("2.11", "the release that CUDA rules were measured on")
def test_compiled_code_is_named_and_its_range_is_open(make: Callable[[], Made]) -> None:
    """At least, what exists between the steps is needed."""
    model, options = make()
    estimate = estimate_memory(model, (8,), 16, "cuda", progress=False, **options)
    low, high = estimate.peak_range
    assert COMPILED in estimate.assumptions
    assert (HOW_COMPILED in estimate.assumptions) == is_known_release()
    assert estimate.at_peak["parameters"] < low < estimate.peak_bytes < high


@from_release("2.11", "the release that CUDA rules were measured on")
def test_a_source_that_is_not_compiled_is_exact() -> None:
    torch.compile(plain())
    estimate = estimate_memory(plain(), (8,), 16, "cuda", progress=False)
    assert COMPILED not in estimate.assumptions
    assert estimate.peak_range == (estimate.peak_bytes, estimate.peak_bytes)
