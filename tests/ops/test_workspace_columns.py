"""CUDA convolutions without cuDNN, against requests to torch 2.13's allocator on the no-op runtime."""

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import nn

from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.scratch.cuda import blas
from torchsummary_plus.ops.scratch.registry import Alloc, Free, Result
from torchsummary_plus.step.workspace import Workspaces

pytestmark = pytest.mark.usefixtures("kept_workspaces")

FLAT, DEEP = (2, 16, 32, 32), (2, 16, 8, 8, 8)
CASES: dict[str, tuple[Any, ...]] = {
    # The shapes of input and weights; stride, padding, dilation, groups; with a stride of 2, transposed.
    "plane": (FLAT, (8, 16, 3, 3), 1, 1, 1, 1),
    "groups": (FLAT, (8, 8, 3, 3), 1, 1, 1, 2),
    "volume": (DEEP, (8, 16, 3, 3, 3), 1, 1, 1, 1),
    "transposed plane": (FLAT, (16, 8, 3, 3), 2, 1, 1, 1),
    "transposed volume": (DEEP, (16, 8, 3, 3, 3), 2, 1, 1, 1),
}
FORWARD = {
    "plane": [32768, 294912],
    "groups": [*[32768, 16384, 147456, -147456, -32768] * 2, 32768],
    "volume": [16384, 442368],
    "transposed plane": [131072, 147456, 8192],
    "transposed volume": [32768, 131072, -32768, 221184, 8192],
}
ONLY_BOUNDED = {
    *((case, name) for case in ("volume", "transposed volume") for name in ("convolution", "convolution_backward")),
}
GROUP = [16384, 32768, 16384, 32768, 147456, 8, 576, -147456, -16384, -32768, -16384]
"""A group's gradients from a channels-last one, which is copied twice."""
BACKWARD = {
    "plane": [32768, 65536, 294912, 16, 2304],
    "groups": [*GROUP, *GROUP, 65536, 1152, 16],
    "volume": [16384, 32768, 6912, 16, 442368, 16],
    "transposed plane": [131072, 65536, 147456, -147456, -131072, 2304, 16, 131072, 147456],
    "transposed volume": [131072, 32768, 221184, -221184, -131072, 6912, 16, 131072, 221184],
}


def meta(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16, device="meta")


def changes(name: str, results: list[torch.Tensor], *args: Any) -> list[int]:
    """The bytes that a kernel allocates, and frees before its last allocation."""
    sizes: list[int] = []
    buffers: list[int] = []
    out = results[0] if len(results) == 1 else tuple(results)
    for step in Workspaces("cuda").scratch(name, args, {}, out):
        if isinstance(step, Result):
            sizes.append(results[step.result].nbytes)
        elif isinstance(step, Alloc):
            sizes.append(step.nbytes)
            buffers.append(step.nbytes)
        elif isinstance(step, Free):
            sizes.append(-buffers[step.buffer])
    while sizes[-1] <= 0:
        sizes.pop()
    return [change for change in sizes if change]


@pytest.mark.parametrize("case", CASES)
def test_columns_are_allocated_as_aten_does(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bias, and backwards from a channels-last gradient."""
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    shape, kernel, stride, padding, dilation, groups = CASES[case]
    axes, transposed = len(shape) - 2, stride == 2
    x, weight = meta(shape), meta(kernel)
    out = meta((2, 8, *(size * stride for size in shape[2:])))
    how = ([stride] * axes, [padding] * axes, [dilation] * axes, transposed, [stride - 1] * axes, groups)
    bias = meta((8,))
    calls: list[tuple[str, list[torch.Tensor], tuple[Any, ...], list[int]]] = []
    calls.append(("aten::convolution", [out], (x, weight, bias, *how), FORWARD[case]))
    grad = out.contiguous(memory_format=torch.channels_last if axes == 2 else torch.channels_last_3d)
    of_grad = (grad, x, weight, [8], *how, [True] * 3)
    calls.append(("aten::convolution_backward", [x, weight, bias], of_grad, BACKWARD[case]))
    for name, results, args, allocated in calls:
        if (case, name.removeprefix("aten::")) in ONLY_BOUNDED:
            spaces = Workspaces("cuda")
            assert spaces.scratch(name, args, {}, results[0]) == () and spaces.unknown == {name: 1}
            most = max(accumulate(allocated)) - sum(result.nbytes for result in results)
            assert most <= spaces.take_doubt()[0] < 16 * sum(tensor.nbytes for tensor in (x, weight, out))
        else:
            assert changes(name, results, *args) == allocated


def test_a_depthwise_volume_sums_the_bias_while_its_copies_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of input and weights come first, then the copied gradient, then the bias's gradient."""
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    x, weight, bias = meta(DEEP), meta((16, 1, 3, 3, 3)), meta((16,))
    grad = meta(DEEP).contiguous(memory_format=torch.channels_last_3d)
    how = ([1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 16)
    results = [x, weight, bias]
    result = changes("aten::convolution_backward", results, grad, x, weight, [16], *how, [True] * 3)
    assert result[:4] == [x.nbytes, weight.nbytes, grad.nbytes, bias.nbytes]
    assert -grad.nbytes not in result
    last = x.contiguous(memory_format=torch.channels_last_3d)
    frozen = changes("aten::convolution_backward", [weight], grad, last, weight, None, *how, [False, True, False])
    assert frozen == [weight.nbytes, grad.nbytes, x.nbytes]


def test_a_transposed_volume_keeps_the_storage_of_a_larger_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """``slow_conv_transpose3d`` allocates its input's shape and resizes that."""
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    x, weight, out = meta(DEEP), meta((16, 1, 3, 3, 3)), meta((2, 1, 8, 8, 8))
    how = ([1] * 3, [1] * 3, [1] * 3, True, [0] * 3, 1)
    assert Workspaces("cuda").reserves("aten::convolution", (x, weight, None, *how), {}, out) == (x.nbytes,)


@pytest.mark.parametrize(("is_kept", "nbytes"), [("1", 21_774_848), ("0", 13_255_168)])
def test_without_cudnn_results_are_row_major(monkeypatch: pytest.MonkeyPatch, is_kept: str, nbytes: int) -> None:
    """Below capability 8.0 cuDNN takes no bf16; the bytes are those of 2.13 and 2.15 on a T4 of the no-op runtime."""
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", is_kept)
    monkeypatch.setattr(blas, "since", lambda _: True)
    convs = nn.Conv2d(8, 32, 3, padding=1), nn.ConvTranspose2d(32, 8, 2, 2)
    model = nn.Sequential(convs[0], nn.BatchNorm2d(32), nn.ReLU(), convs[1]).bfloat16()
    x = torch.ones(4, 8, 64, 64, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    how: Any = {"input_data": x, "steps": 1, "optimizer": None, "loss": lambda y: y.float().sum(), "progress": False}
    estimate = estimate_memory(model.to(memory_format=torch.channels_last), gpu="T4", **how)
    assert estimate.peak_bytes == nbytes
