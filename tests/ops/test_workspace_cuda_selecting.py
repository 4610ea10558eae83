"""Scratch memory of CUDA kernels that sort, select, add by index or add up along an axis."""

from typing import Any

import pytest
import torch

from tests.ops.test_workspace_cuda import meta, scratch_bytes
from torchsummary_plus.data.capability import AMPERE
from torchsummary_plus.ops.shapes import ruled


@pytest.mark.parametrize("has_cudnn", [True, False])
def test_rows_of_channels_are_normalised_with_staging_buffers(monkeypatch: pytest.MonkeyPatch, has_cudnn: bool) -> None:
    """cuDNN takes images with weights; builds without it call its operator by the same name."""
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: has_cudnn)
    x, row = meta(4096, 512), meta(512)
    forward, backward = "aten::native_batch_norm", "aten::native_batch_norm_backward"
    staging = 4 * 512 * 16 * 4
    options = (None, None, None, None, True, 0.1, 1e-5)
    assert scratch_bytes(AMPERE, forward, (x, *options), (x, row, row)) == staging + 4 * 16
    assert scratch_bytes(AMPERE, forward, (meta(16, 64, 32, 32), *options), (x, row, row)) == 0
    assert scratch_bytes(AMPERE, forward, (x, row, row, *options[2:]), (x, row, row)) == staging + 4 * 16
    image, channel = meta(16, 64, 32, 32).to(memory_format=torch.channels_last), meta(64)
    staged = scratch_bytes(AMPERE, forward, (image, channel, channel, *options[2:]), (image, channel, channel))
    assert (staged > 0) == has_cudnn
    args = x, x, None, None, None, row, row, True, 1e-5, [True, True, True]
    assert scratch_bytes(AMPERE, backward, args, (x, row, row)) == 2 * 2048 + staging // 2 + 4 * 16
    with_weight = x, x, row, row, row, row, row, True, 1e-5, [True, True, True]
    assert scratch_bytes(AMPERE, backward, with_weight, (x, row, row)) == 2 * 2048 + staging // 2 + 4 * 16
    evenly = x[:1, :1].expand(4096, 512), *with_weight[1:]
    assert scratch_bytes(AMPERE, backward, evenly, (x, row, row)) == 2 * 2048
    even = meta(1, 1, 1, 1).expand(16, 64, 32, 32)
    alone = even, image, channel, None, None, channel, channel, True, 1e-5, [True, True, True]
    ours = scratch_bytes(AMPERE, backward, alone, (image, channel, channel))
    assert ours == (2 * 4 * 64 if has_cudnn else 4 * image.numel())
    result: Any = ruled(torch.ops.aten.native_batch_norm_backward.default, alone, {})
    assert result[0][:2] == (tuple(image.shape), image.stride())
