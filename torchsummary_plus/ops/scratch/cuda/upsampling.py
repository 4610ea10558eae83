"""CUDA: copies that upsampling makes of tensors that are not in its kernels' layout."""

from __future__ import annotations

from typing import Any

import torch

from ..registry import Alloc, Course, Result, scratch
from ..sizes import copied, nbytes, suggested
from .allocations import buffers, copies

NEAREST = "aten/src/ATen/native/cuda/UpSampleNearest2d.cu"
BILINEAR = "aten/src/ATen/native/cuda/UpSampleBilinear2d.cu, upsample_bilinear2d_backward_out_cuda_template"
PLAIN = (
    "aten/src/ATen/native/cuda/UpSampleNearest1d.cu, UpSampleNearest3d.cu, UpSampleTrilinear3d.cu, UpSampleBicubic2d.cu"
)
FEWEST_CHANNELS = 4
"""Channels from which the kernels read channels-last images."""


@scratch("cuda", "aten::upsample_nearest2d", "aten::_upsample_nearest_exact2d", source=NEAREST, band=0.0)
def nearest(out: Any, x: Any, *_: Any) -> Course:
    """The output, one more if it is channels-last with few channels, and a copy of the input."""
    return Result(0), *_copies(out, x)


@scratch(
    *("cuda", "aten::upsample_nearest2d_backward", "aten::_upsample_nearest_exact2d_backward"),
    source=NEAREST,
    band=0.0,
)
def nearest_backward(out: Any, grad: Any, *_: Any) -> Course:
    """The input's gradient, one more if it is channels-last with few channels, and a copy of the output's gradient."""
    return Result(0), *_copies(out, grad)


@scratch("cuda", "aten::upsample_bilinear2d_backward", source=BILINEAR, band=0.0)
def bilinear_backward(out: Any, grad: Any, *_: Any) -> Course:
    """As :func:`nearest_backward`, unless the sizes are equal: then the gradient is copied."""
    return Result(0), *(() if out.shape == grad.shape else _copies(out, grad))


@scratch(
    *("cuda", "aten::upsample_nearest1d_backward", "aten::upsample_nearest3d_backward"),
    *("aten::upsample_trilinear3d_backward", "aten::upsample_bicubic2d_backward"),
    source=PLAIN,
    band=0.0,
)
def plain_backward(out: Any, grad: Any, *_: Any) -> Course:
    """The input's gradient, and a contiguous copy of the output's."""
    return Result(0), *copies(grad)


def _copies(out: Any, read: Any) -> Course:
    """Return the copies of what is read and written, in the layout of the kernel that runs."""
    if suggested(read) is not torch.channels_last:
        return copies(read)
    if read.shape[1] >= FEWEST_CHANNELS:
        return buffers(copied(read, torch.channels_last))
    return Alloc(nbytes(out)), *copies(read)
