"""Whole forwards on CUDA against peaks that torch 2.13 measured on the no-op runtime."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.backends import HALVES

pytestmark = from_release("2.13", "the order in which the measured allocator chooses blocks")


class Of(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight.to(x.dtype))


def binary(x: Tensor, **weights: Tensor) -> Tensor:
    factors = torch.ones(701, device=x.device)
    return F.binary_cross_entropy_with_logits(x, x.detach(), pos_weight=factors, **weights)


complex_of = torch.view_as_complex
PARTS, SPECTROGRAM = (300, 3333, 2), (16, 513, 400, 2)
SINGLE, DOUBLE = torch.float32, torch.float64
TRAINING: dict[str, Any] = {"mode": "train", "loss": lambda out: out.abs().float().sum()}
CALLS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], torch.dtype, dict[str, Any], int]] = {
    "variance": (lambda x: x.var(0), (2000, 2000), DOUBLE, {"gpu": "H100 80GB"}, 326_161_408),
    "variance and mean": (lambda x: torch.var_mean(x, 0)[1], (3000, 3000), DOUBLE, {}, 721_585_152),
    "deviation of complex": (lambda x: torch.std_mean(complex_of(x), 0)[1], PARTS, DOUBLE, {}, 33_744_384),
    "variance of conjugates": (lambda x: complex_of(x).mT.conj().var(1), PARTS, SINGLE, {}, 24_040_448),
    "magnitudes": (lambda x: complex_of(x).abs(), SPECTROGRAM, SINGLE, {}, 94_922_240),
    "close": (lambda x: torch.isclose(complex_of(x), complex_of(x)), SPECTROGRAM, SINGLE, {}, 139_598_848),
    "infinite": (lambda x: complex_of(x).isinf(), PARTS, SINGLE, {}, 22_971_904),
    "l1 loss": (lambda x: F.l1_loss(complex_of(x), complex_of(x) * 2), PARTS, SINGLE, {}, 44_970_496),
    "logsumexp": (lambda x: complex_of(x).logsumexp(0), PARTS, SINGLE, {}, 24_039_936),
    "a loss in training": (
        *(lambda x: (complex_of(x).abs() - complex_of(x).angle()).square().mean(), SPECTROGRAM, SINGLE, TRAINING),
        220_391_936,
    ),
    "weighted positives": (lambda x: binary(x, weight=x.detach()), (5000, 701), HALVES[0], {}, 35_717_632),
    "weight norm": (lambda x: torch._weight_norm(x, x[:, :1].clone(), 0), (50_000, 16), HALVES[0], {}, 5_101_056),
}
ONLY_BOUNDED = {
    "deviation of complex": "aten::std_mean.correction",
    "variance of conjugates": "aten::var.correction",
    "logsumexp": "aten::logsumexp",
}
"""The operators of CALLS that have only a bound."""


@pytest.mark.parametrize("name", CALLS)
def test_the_peak_is_the_measured_one(name: str) -> None:
    function, shape, dtype, options, measured = CALLS[name]
    x = torch.empty(shape, dtype=dtype, device="meta")
    options = {"mode": "eval", "gpu": "A100 80GB", **options}
    estimate = estimate_memory(Of(function), input_data=x, device="cuda", progress=False, **options)
    if name in ONLY_BOUNDED:
        low, high = estimate.peak_range
        assert low <= measured <= high and list(dict(estimate.unknown)) == [ONLY_BOUNDED[name]]
    else:
        assert not estimate.unknown and estimate.peak_range == (measured, measured)
