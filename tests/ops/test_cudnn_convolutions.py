"""How torch routes convolutions and uses cuDNN's workspaces: copies, their order, and cudnn.benchmark's trials."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.ops.test_workspace_cuda_layers import timeline
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.memory.attribution import replay
from torchsummary_plus.ops.scratch.cuda.convolution import Convolution, route
from torchsummary_plus.ops.scratch.registry import Alloc, Result
from torchsummary_plus.step.workspace import Workspaces


def meta(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> Any:
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    return tensor.to(memory_format=torch.channels_last) if last else tensor


HALF, BRAIN, DOUBLE = torch.float16, torch.bfloat16, torch.float64


@pytest.mark.parametrize(
    ("dtype", "kernel", "step", "channels", "last", "taken"),
    [
        (torch.float32, 3, 1, 32, False, "depthwise"),
        (torch.float32, 3, 1, 32, True, "cudnn"),
        (HALF, 3, 1, 32, False, "cudnn"),
        (HALF, 3, 2, 32, False, "depthwise"),
        (HALF, 3, 2, 256, False, "cudnn"),
        (HALF, 5, 1, 64, False, "cudnn"),
        (HALF, 7, 1, 64, False, "depthwise"),
        (HALF, 3, 1, 16, False, "depthwise"),
        (BRAIN, 3, 1, 32, False, "depthwise"),
        (BRAIN, 7, 1, 64, True, "cudnn"),
        (DOUBLE, 3, 1, 32, True, "depthwise"),
    ],
)
def test_depthwise_convolutions_go_as_select_conv_backend_says(
    dtype: torch.dtype, kernel: int, step: int, channels: int, last: bool, taken: str
) -> None:
    """As ``torch._C._select_conv_backend`` of torch 2.13 said under the no-op runtime, for images of 56 x 56."""
    conv = Convolution(dtype, (1, 1), (step, step), (1, 1), False, (0, 0), channels)
    x, weight = meta(4, channels, 56, 56, dtype=dtype, last=last), meta(channels, 1, kernel, kernel, dtype=dtype)
    assert route(conv, x, weight, (8, 0)) == taken


def test_what_cudnn_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = meta(4, 32, 8, 8), meta(32, 32, 3, 3)
    dense = Convolution(torch.float32, (1, 1), (2, 2), (1, 1), True, (1, 1), 1)
    padded = Convolution(torch.float32, (1, 1), (2, 2), (1, 1), True, (2, 2), 1)
    brain = Convolution(BRAIN, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    assert route(dense, x, weight, (8, 0)) == "cudnn" and route(padded, x, weight, (8, 0)) == "columns"
    assert route(brain, x, weight, (8, 0)) == "cudnn" and route(brain, x, weight, (7, 5)) == "columns"
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    assert route(dense, x, weight, (8, 0)) == "columns"


def without_workspaces(steps: list[Any]) -> list[Any]:
    """The steps without buffers that are freed at once."""
    freed = {place for place in range(1, len(steps)) if f"-{steps[place - 1]}" == str(steps[place])}
    return [step for place, step in enumerate(steps) if not {place, place + 1} & freed]


def test_copies_are_made_in_the_order_of_aten() -> None:
    """A channels-last image and weights that are not: the weights are copied for every kernel, the gradient once."""
    last = torch.empty(4, 32, 14, 14, device="meta").to(memory_format=torch.channels_last)
    weight, plain = torch.empty(32, 32, 3, 3, device="meta"), torch.empty(4, 32, 14, 14, device="meta")
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    kernel, image = 4 * weight.numel(), 4 * plain.numel()
    assert without_workspaces(timeline("aten::convolution", (last, weight, None, *how), last)) == ["result 0", kernel]
    args = plain, last, weight, None, *how, [True, True, False]
    backward = timeline("aten::convolution_backward", args, (last, weight, None))
    assert without_workspaces(backward) == [image, "result 0", kernel, -kernel, "result 1"]


def test_depthwise_gradients_copy_a_part_of_the_channels() -> None:
    """The gradient's copy lives through both kernels, that of the image only through the one for the weights."""
    x, grad = (torch.empty(4, 64, 14, 14, device="meta")[:, :32] for _ in range(2))
    weight, out = torch.empty(32, 1, 3, 3, device="meta"), torch.empty(4, 32, 14, 14, device="meta")
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 32)
    image = 4 * out.numel()
    name, args = "aten::convolution_backward", (grad, x, weight, None, *how)
    both = timeline(name, (*args, [True, True, False]), (out, weight, None))
    assert both == [image, image, "result 1", -image, "result 0", -image]
    frozen = timeline(name, (*args, [True, False, False]), (out, None, None))
    assert frozen == [image, "result 0", -image]


@from_release("2.11", "the release that CUDA rules were measured on")
def test_the_weight_of_an_empty_batch_is_copied_unless_it_is_flat() -> None:
    """``ConvBackend::Empty`` in ATen/native/Convolution.cpp; the bytes are those of the no-op runtime (A100)."""
    x, out, how = torch.empty(0, 16, 20, 20, device="meta"), torch.empty(0, 5, 18, 18, device="meta"), ([1, 1], [0, 0])
    part = torch.empty(8, 16, 20, 20, device="meta")[:5, :, :3, :3]
    last, rows = part.contiguous(memory_format=torch.channels_last), part.contiguous()
    for weight, copy in ((part, (Alloc(2880),)), (last, ()), (rows, ())):
        args = x, weight, None, *how, [1, 1], False, [0, 0], 1
        assert Workspaces("cuda").scratch("aten::convolution", args, {}, out) == (*copy, Result(0))


def test_benchmark_tries_all_in_one_workspace_and_empties_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    estimate = estimate_memory(nn.Conv2d(64, 64, 3, padding=1), (64, 56, 56), 8, gpu="A100 80GB", progress=False)
    trials = [spec for spec in estimate.log.storages if spec.empties]
    assert len(trials) == 2  # The forward's and that of the weights' gradient, in the first step alone.
    assert max(spec.nbytes for spec in trials) >= 2 * 4 * 64 * 56 * 56 * 8
    reserved = replay(estimate.log, "cuda", estimate.options).peak_reserved_bytes
    assert reserved == estimate.reserved_bytes and "aten::convolution" in dict(estimate.unknown)
