"""Calls drawn of torch's operators on images in any layout: fakes of CUDA tensors lie as CUDA's kernels lay results."""

from __future__ import annotations

import pytest

from benchmarks.cpu.calls import calls, operators
from benchmarks.cpu.layouts import CudaDrawing, is_complex, misplaced

NAMES = (
    *("mul", "add", "maximum", "eq", "lt", "floor_divide", "logical_and", "xlogy", "div", "where", "mse_loss"),
    *(
        "hypot",
        "nextafter",
        "glu",
        "log_sigmoid",
        "softmax",
        "log_softmax",
        "channel_shuffle",
        "uniform",
        "pow",
        "rrelu",
    ),
    *("batch_norm", "group_norm", "layer_norm", "instance_norm"),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_results_lie_as_the_kernels_lay_them(name: str) -> None:
    drawn = list(calls(operators(f"^{name}$"), 60, 3, CudaDrawing))
    known = [call for call in drawn if call.operator.name() not in EMPTY and not is_complex(call)]
    assert known and not [f"{call.text}: {how}" for call, how in misplaced(known, CudaDrawing.device)]


EMPTY = ("aten::log_sigmoid_forward",)
"""Whose buffer has no elements on CUDA; its bytes are those of a rule."""
