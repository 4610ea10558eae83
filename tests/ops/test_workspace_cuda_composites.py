"""Scratch memory on CUDA for operands of another dtype than the result's, recorded on the no-op runtime (A100)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.test_workspace_cuda import meta, scratch_bytes
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


@pytest.mark.parametrize("rows", [1, 7])
def test_a_safe_softmax_has_two_masks_also_of_a_single_element(rows: int) -> None:
    scores = meta(rows, 1)
    assert scratch_bytes(AMPERE, "aten::_safe_softmax", (scores, -1), scores) == rows + rows + 4
