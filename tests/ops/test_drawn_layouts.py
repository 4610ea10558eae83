"""Calls drawn of torch's operators on images in any layout: the results on fakes lie as the kernels lay them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.memory_calls import calls, operators
from benchmarks.result_layouts import ImageDrawing, misplaced

CAST = ("mul", "add", "maximum", "eq", "lt", "floor_divide", "logical_and", "xlogy", "div")
"""Operators that cast operands of several dtypes."""
ROW_MAJOR = ("isin", "pow", "nonzero_static", "rrelu", "normal", "rrelu_with_noise", "mse_loss", "smooth_l1_loss")
BY_ITERATOR = (
    *("copysign", "heaviside", "igamma", "igammac", "logaddexp", "logaddexp2", "logit", "special_xlog1py", "where"),
    "channel_shuffle",
)


def is_complex(value: object) -> bool:
    return value.dtype.is_complex if isinstance(value, Tensor) else isinstance(value, complex)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*CAST, *ROW_MAJOR, *BY_ITERATOR])
def test_results_lie_as_the_kernels_lay_them(name: str) -> None:
    drawn = list(calls(operators(f"^{name}$"), 40, 3, ImageDrawing))
    torch.manual_seed(3)
    chosen = [call for call in drawn if name == "pow" or not any(map(is_complex, call.args))]
    assert chosen and not [f"{call.text}: {difference}" for call, difference in misplaced(chosen)]
