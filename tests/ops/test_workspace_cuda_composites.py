"""Scratch memory on CUDA for operands of another dtype than the result's, recorded on the no-op runtime (A100)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.test_workspace_cuda import meta, scratch_bytes
from tests.ops.test_workspace_cuda_layers import course
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.capability import AMPERE

ROWS, COLUMNS = 300, 400
COUNT = ROWS * COLUMNS
OUT = meta(ROWS, COLUMNS)


def of(dtype: torch.dtype) -> torch.Tensor:
    return meta(ROWS, COLUMNS, dtype=dtype)


@pytest.mark.parametrize(("name", "args"), [("aten::pow.Tensor_Scalar", (2.5,)), ("aten::clamp", (0.5, None))])
def test_integers_are_converted_ahead_of_the_result(name: str, args: tuple[Any, ...]) -> None:
    for dtype in (torch.int32, torch.bool):
        assert scratch_bytes(AMPERE, name, (of(dtype), *args), OUT) == 4 * COUNT
    assert scratch_bytes(AMPERE, name, (OUT, *args), OUT) == 0


def test_a_logsumexp_of_integers_is_one_of_their_conversion() -> None:
    out = meta(ROWS)
    numbers = scratch_bytes(AMPERE, "aten::logsumexp", (OUT, [1]), out)
    assert scratch_bytes(AMPERE, "aten::logsumexp", (of(torch.int32), [1]), out) == numbers + 4 * COUNT


@pytest.mark.parametrize(("dtype", "mask"), [(torch.int32, COUNT), (torch.bool, 0)])
def test_counting_adds_up_a_mask_as_integers(dtype: torch.dtype, mask: int) -> None:
    rows = meta(ROWS, dtype=torch.int64)
    assert scratch_bytes(AMPERE, "aten::count_nonzero.dim_IntList", (of(dtype), [1]), rows) == 8 * COUNT + mask


def test_a_norm_in_another_dtype_converts_unless_the_kernel_does() -> None:
    name = "aten::linalg_vector_norm"
    half, double = of(torch.float16), meta(ROWS, dtype=torch.float64)
    assert scratch_bytes(AMPERE, name, (OUT, 2, [1], False), double, dtype=torch.float64) == 8 * COUNT
    assert scratch_bytes(AMPERE, name, (half, 2, [1], False), meta(ROWS), dtype=torch.float32) == 0
    assert scratch_bytes(AMPERE, name, (of(torch.complex64), 2, [1], False), meta(ROWS)) == 0


def test_infinities_are_sought_among_magnitudes() -> None:
    mask = of(torch.bool)
    assert scratch_bytes(AMPERE, "aten::isinf", (of(torch.float16),), mask) == 2 * COUNT
    assert scratch_bytes(AMPERE, "aten::isinf", (of(torch.int32),), mask) == 0


def test_an_exponent_becomes_a_power_of_two() -> None:
    assert scratch_bytes(AMPERE, "aten::ldexp.Tensor", (OUT, of(torch.int32)), OUT) == 4 * COUNT + 8
    half = of(torch.float16)
    assert scratch_bytes(AMPERE, "aten::ldexp.Tensor", (half, half), half) == 2 * COUNT + 8


def test_an_estimate_counts_the_conversion() -> None:
    class Counts(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x > 0).count_nonzero()

    estimate = estimate_memory(Counts(), (1000,), 100, "cuda", mode="eval", progress=False)
    assert estimate.at_peak["workspace"] >= 8 * 100 * 1000


@pytest.mark.parametrize("rows", [1, 7])
def test_a_safe_softmax_has_two_masks_also_of_a_single_element(rows: int) -> None:
    scores = meta(rows, 1)
    assert scratch_bytes(AMPERE, "aten::_safe_softmax", (scores, -1), scores) == rows + rows + 4


def test_a_product_of_packed_int8_is_one_in_float32() -> None:
    """In the order of the allocator's records: input, weight, scales, product, and the result in its dtype."""
    name, half, single = "aten::_weight_int8pack_mm", torch.bfloat16, torch.float32
    weight = meta(1024, 512, dtype=torch.int8)

    def steps(x: torch.dtype, scales: torch.dtype, weight: torch.Tensor = weight) -> list[Any]:
        args = meta(64, 512, dtype=x), weight, meta(1024, dtype=scales)
        return course(name, args, meta(64, 1024, dtype=x))

    assert steps(half, half) == [4 * 64 * 512, 4 * 1024, 4 * 64 * 1024, "result 0"]
    assert steps(half, single) == [4 * 64 * 512, 4 * 64 * 1024, "result 0"]
    assert steps(single, half) == [4 * 1024, "result 0"]
    turned = meta(512, 1024, dtype=torch.int8).t()
    assert steps(single, single, turned) == [1024 * 512, "result 0"]
