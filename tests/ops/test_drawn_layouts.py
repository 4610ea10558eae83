"""Calls drawn of torch's operators on images in any layout: the results on fakes lie as the kernels lay them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from benchmarks.cpu.calls import calls, operators
from benchmarks.cpu.layouts import ImageDrawing, is_complex, misplaced
from torchsummary_plus.live.fakes import fake_like
from torchsummary_plus.table.forward import Pass
from torchsummary_plus.table.modules import ModuleTree
from torchsummary_plus.trace.kernels import FakeKernels

aten, CUDA = torch.ops.aten, torch.device("cuda")

NAMES = ("add", "maximum", "lt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_results_lie_as_the_kernels_lay_them(name: str) -> None:
    drawn = list(calls(operators(f"^{name}$"), 40, 3, ImageDrawing))
    torch.manual_seed(3)
    chosen = [call for call in drawn if not is_complex(call)]
    assert chosen and not [f"{call.text}: {difference}" for call, difference in misplaced(chosen)]


SIZE = (4, 6, 5, 7)
LAST, FLAT = (210, 1, 42, 6), (210, 35, 7, 1)


def in_last(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(SIZE, dtype=dtype).contiguous(memory_format=torch.channels_last)


def batch_norm_backward(training: bool) -> tuple[Any, ...]:
    statistics, image = [torch.zeros(6) for _ in range(5)], in_last(torch.bfloat16)
    return aten.native_batch_norm_backward.default, image, image, *statistics, training, 1e-5, [True, True, True]


@pytest.mark.parametrize(
    ("call", "strides"),
    [
        ((aten.glu_backward.default, torch.zeros(4, 3, 5, 7), in_last(), 1), FLAT),
        ((aten._log_softmax_backward_data.default, in_last(), torch.zeros(SIZE), 1, torch.float32), FLAT),
        (batch_norm_backward(training=True), LAST),
        (batch_norm_backward(training=False), FLAT),
    ],
    ids=lambda value: value[0].name() if isinstance(value[0], torch._ops.OpOverload) else "",
)
def test_results_on_cuda_lie_as_its_kernels_lay_them(call: tuple[Any, ...], strides: tuple[int, ...]) -> None:
    """As ``benchmarks.cpu.layouts`` sees them on the no-op runtime."""
    operator, *args = tree_map_only(Tensor, lambda tensor: fake_like(tensor, CUDA), call)
    with Pass(ModuleTree(nn.Identity()), FakeKernels(CUDA), []), torch.no_grad():
        out = operator(*args)
    assert (out if isinstance(out, Tensor) else out[0]).stride() == strides
