"""A CUDA convolution without cuDNN, against the no-op runtime."""

from typing import Any

import pytest
import torch
from torch import nn

from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.scratch.cuda import blas
from torchsummary_plus.ops.scratch.registry import Handle
from torchsummary_plus.step.workspace import Workspaces

pytestmark = pytest.mark.usefixtures("kept_workspaces")


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


def test_columns_of_volumes_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    shapes = (2, 16, 8, 8, 8), (8, 16, 3, 3, 3), (2, 8, 8, 8, 8)
    x, weight, out = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes)
    spaces = Workspaces("cuda")
    settings = [1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1
    timeline = spaces.scratch("aten::convolution", (x, weight, None, *settings), {}, out)
    assert timeline == (Handle("cublas", 8_519_680),)
    assert spaces.unknown == {"aten::convolution": 1}
    assert 442_368 <= spaces.take_doubt()[0] < 16 * sum(tensor.nbytes for tensor in (x, weight, out))
