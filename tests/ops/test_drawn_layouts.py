"""Calls drawn of torch's operators on images in any layout: the results on fakes lie as the kernels lay them."""

from __future__ import annotations

import pytest
import torch

from benchmarks.memory_calls import calls, operators
from benchmarks.result_layouts import ImageDrawing, misplaced
from torchsummary_plus.trace.kernels import tensors_of

CAST = ("mul", "add", "maximum", "eq", "lt", "floor_divide", "logical_and", "xlogy", "div")
"""Operators that cast operands of several dtypes."""
ROW_MAJOR = ("isin", "nonzero_static", "rrelu", "normal", "rrelu_with_noise", "mse_loss", "smooth_l1_loss")
BY_ITERATOR = ("copysign", "logaddexp", "logaddexp2", "logit", "special_xlog1py", "where", "channel_shuffle")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*CAST, *ROW_MAJOR, *BY_ITERATOR])
def test_results_lie_as_the_kernels_lay_them(name: str) -> None:
    drawn = list(calls(operators(f"^{name}$"), 40, 3, ImageDrawing))
    torch.manual_seed(3)
    real = [call for call in drawn if not any(value.dtype.is_complex for value in tensors_of(call.args))]
    assert real and not [f"{call.text}: {difference}" for call, difference in misplaced(real)]
