"""Gradients of single operators whose memory depends on modes, masks or dtypes, predicted against measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.step.test_memory_operators import SIDE, Through
from tests.truth.releases import from_release
from torchsummary_plus import MemoryEstimate, estimate_memory, measure_memory
from torchsummary_plus.ops.backends import multiplies

pytestmark = pytest.mark.usefixtures("threads")


def allocated(estimate: MemoryEstimate) -> int:
    """Bytes that a step allocates in all, at whatever time."""
    return sum(nbytes for _, _, nbytes in estimate.log.events)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(
            lambda x: torch.add(*torch.aminmax(x, dim=0)), marks=from_release("2.13", "the gradient of aminmax")
        ),
        lambda x: torch.atan2(x, x.abs() + 1),
        lambda x: torch.maximum(x, -x),
        lambda x: torch.gather(x, 0, torch.zeros_like(x, dtype=torch.int64)),
    ],
    ids=["aminmax", "atan2", "maximum", "gather"],
)
def test_formulas_that_write_in_place_without_a_mode(function: Callable[[Tensor], Tensor]) -> None:
    """Also where the peak is elsewhere: what the step allocates in all is the same."""
    model, x = Through(function), torch.randn(300, SIDE)
    predicted, measured = (call(model, input_data=x, steps=1) for call in (estimate_memory, measure_memory))
    assert predicted.peak_bytes == measured.peak_bytes
    assert allocated(predicted) == allocated(measured)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_gradient_of_masked_scatter_lies_in_the_range_whatever_the_mask_selects(share: float) -> None:
    chosen = torch.arange(300 * SIDE).view(300, SIDE) < share * 300 * SIDE
    model, x = Through(lambda x: (-x).masked_scatter(chosen, x * 2)), torch.randn(300, SIDE)
    low, high = estimate_memory(model, input_data=x).peak_range
    assert low <= measure_memory(model, input_data=x).peak_bytes <= high


def test_known_masks_of_one_shape_have_memory_of_their_own() -> None:
    def step(model: nn.Module, x: Tensor, mask: Tensor) -> None:
        torch.zeros_like(mask, dtype=x.dtype).masked_scatter(mask, model(x)).sum().backward()
        model.zero_grad()

    model, x = nn.Linear(SIDE, SIDE), torch.randn(300, SIDE)
    peaks = []
    for least in (0, 100, -100, 1):
        data = [x, x > least]
        peaks.append(estimate_memory(model, input_data=data, train_step=step).peak_bytes)
        assert peaks[-1] == measure_memory(model, input_data=data, train_step=step).peak_bytes
    assert len(set(peaks)) == 4


@pytest.mark.skipif(multiplies(torch.bfloat16), reason="oneDNN computes convolutions in bfloat16 on this processor")
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (lambda: nn.Conv2d(6, 12, 1, stride=2, groups=2), (9, 9)),
        (lambda: nn.Conv3d(6, 12, 1, groups=2), (9, 9, 9)),
        (lambda: nn.ConvTranspose3d(6, 12, 3, groups=2), (9, 9, 9)),
    ],
    ids=["2d", "3d", "transposed 3d"],
)
def test_biases_of_grouped_convolutions_are_summed_in_float32(
    layer: Callable[[], nn.Module], size: tuple[int, ...]
) -> None:
    model, x = layer().bfloat16(), torch.randn(2, 6, *size, dtype=torch.bfloat16)
    predicted, measured = (call(model, input_data=x, loss=squared) for call in (estimate_memory, measure_memory))
    assert predicted.peak_bytes == measured.peak_bytes


def squared(out: Tensor) -> Tensor:
    return (out * out).sum()


def test_a_parameter_without_elements_has_a_gradient_and_a_state() -> None:
    """As the class tokens of a model that is given none."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.linear = nn.Parameter(torch.zeros(0, 64)), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(torch.cat([self.tokens, x]))
            return out

    settings: dict[str, Any] = {"input_data": torch.randn(8, 64), "optimizer": "adamw"}
    estimate, measured = estimate_memory(Tokens(), **settings), measure_memory(Tokens(), **settings)
    assert estimate.peak_bytes == measured.peak_bytes
    assert estimate.steady_bytes == measured.steady_bytes
