"""Whole forwards on CUDA against peaks that torch 2.13 measured on the no-op runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.dtypes import HALVES

pytestmark = from_release("2.13", "the order in which the measured allocator chooses blocks")


class Of(torch.nn.Module):
    """A function of the input, each element of which depends on a parameter."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x * self.weight.to(x.dtype))


def peak(
    function: Callable[[torch.Tensor], torch.Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    card: str = "A100",
    **options: Any,
) -> int:
    x = torch.empty(shape, dtype=dtype, device="meta")
    gpu = {"A100": "A100 80GB", "H100": "H100 80GB", "RTX3090": "RTX 3090"}[card]
    estimate = estimate_memory(
        Of(function), input_data=x, device="cuda", gpu=gpu, progress=False, **{"mode": "eval", **options}
    )
    assert not estimate.unknown and estimate.peak_range == (estimate.peak_bytes, estimate.peak_bytes)
    return estimate.peak_bytes


def total(out: torch.Tensor) -> torch.Tensor:
    return out.abs().float().sum()


complex_of = torch.view_as_complex
PARTS = (300, 3333, 2)


@pytest.mark.parametrize(
    ("function", "shape", "card", "measured"),
    [
        (lambda x: x.var(0), (2000, 2000), "H100", 326_161_408),
        (torch.std, (1000, 333), "RTX3090", 5_331_968),
        (lambda x: torch.var_mean(x, 0)[1], (3000, 3000), "A100", 721_585_152),
        (lambda x: torch.std_mean(complex_of(x), 0)[1], PARTS, "A100", 33_744_384),
    ],
)
def test_variances_of_doubles(function: Any, shape: tuple[int, ...], card: str, measured: int) -> None:
    assert peak(function, shape, torch.float64, card) == measured


@pytest.mark.parametrize(
    ("function", "measured"),
    [
        (lambda x: complex_of(x).var(0), 16_040_960),
        (lambda x: complex_of(x).std(), 16_003_072),
        (lambda x: torch.var_mean(complex_of(x), 1)[0], 16_009_728),
        (lambda x: complex_of(x).mT.conj().var(1), 24_040_448),
    ],
)
def test_variances_of_complex_numbers_are_those_of_their_parts(function: Any, measured: int) -> None:
    assert peak(function, PARTS) == measured


SPECTROGRAM = (16, 513, 400, 2)


@pytest.mark.parametrize(
    ("function", "shape", "measured"),
    [
        (lambda x: complex_of(x).abs(), SPECTROGRAM, 94_922_240),
        (lambda x: complex_of(x).angle(), SPECTROGRAM, 94_922_240),
        (lambda x: (complex_of(x) - complex_of(x).conj()).abs().mean(), SPECTROGRAM, 122_185_216),
        (lambda x: torch.isclose(complex_of(x), complex_of(x)), SPECTROGRAM, 139_598_848),
        (lambda x: complex_of(x).isinf(), PARTS, 22_971_904),
        (lambda x: F.l1_loss(complex_of(x), complex_of(x) * 2), PARTS, 44_970_496),
    ],
)
def test_magnitudes_are_complex_before_they_are_real(function: Any, shape: tuple[int, ...], measured: int) -> None:
    assert peak(function, shape) == measured


@pytest.mark.parametrize(
    ("function", "measured"),
    [
        (lambda x: torch.linalg.vector_norm(complex_of(x), 1), 16_001_024),
        (lambda x: complex_of(x).logsumexp(0), 24_039_936),
    ],
)
def test_norms_add_up_magnitudes(function: Any, measured: int) -> None:
    assert peak(function, PARTS) == measured


def test_a_loss_of_magnitudes_in_training() -> None:
    def difference(x: torch.Tensor) -> torch.Tensor:
        return (complex_of(x).abs() - complex_of(x).angle()).square().mean()

    assert peak(difference, SPECTROGRAM, mode="train", loss=total) == 220_391_936


def binary(x: torch.Tensor, **weights: torch.Tensor) -> torch.Tensor:
    factors = torch.ones(701, device=x.device)
    target = x.detach()
    return F.binary_cross_entropy_with_logits(x, target, pos_weight=factors, **weights)


@pytest.mark.parametrize("dtype", HALVES)
def test_weights_of_positives_are_counted_in_the_dtype_they_have_with_the_targets(dtype: torch.dtype) -> None:
    assert peak(binary, (5000, 701), dtype) == 35_717_632
    assert peak(lambda x: binary(x, weight=x.detach()), (5000, 701), dtype) == 35_717_632


@pytest.mark.parametrize(("dtype", "measured"), [*((half, 5_101_056) for half in HALVES), (torch.float32, 10_000_896)])
def test_norms_of_weights_are_in_float32_at_least(dtype: torch.dtype, measured: int) -> None:
    assert peak(lambda x: torch._weight_norm(x, x[:, :1].clone(), 0), (50_000, 16), dtype) == measured


def pooled(x: torch.Tensor) -> torch.Tensor:
    samples = torch.zeros(2, 3, 3, dtype=x.dtype, device=x.device)
    return F.fractional_max_pool3d(x, 2, output_ratio=0.5, _random_samples=samples)


@pytest.mark.parametrize("dtype", HALVES)
def test_an_operator_that_the_cpu_lacks_in_half_precision_is_computed_on_zeros_in_float32(dtype: torch.dtype) -> None:
    assert peak(pooled, (2, 3, 16, 16, 16), dtype, mode="train", loss=total) == 179_712
