"""Which library's convolution torch takes on the CPU, and in which layout the result comes.

ATen/native/Convolution.cpp, ``ConvParams::use_mkldnn`` and ``determine_backend_memory_format``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .processor import is_half, multiplies

ENOUGH = 20480
"""Elements of an image from which oneDNN is faster than ATen's kernels; of its axes four are counted."""


def settings() -> tuple[int, bool]:
    """All that the choice depends on beside a call's arguments."""
    return torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)


def takes_onednn(
    x: Any, weight: Any, stride: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> bool:  # fmt: skip
    """oneDNN takes a float32 convolution, but for what is small, or 1x1 on a single thread; one in half if it can.

    Of an image with depth the width does not count, so that a large one may count as small.
    """
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if transposed and any(pad >= step for pad, step in zip(output_padding, stride)):
        return False
    if is_half(x.dtype):
        return multiplies(x.dtype)
    if x.dtype is not torch.float32:
        return False
    kernel = (1, *weight.shape[2:])[-2:]
    is_large = x.shape[0] > 1 or groups > 1 or prod(x.shape[:4]) > ENOUGH or min(kernel) > 3
    is_pointwise = kernel == (1, 1) and all(size == 1 for size in (*stride, *dilation))
    return is_large and (not is_pointwise or x.shape[0] >= 16 or torch.get_num_threads() > 1)


def keeps_last(x: Any, *call: Any) -> bool:
    """Whether the result of a convolution of channels-last tensors is so, too; of volumes it is from oneDNN alone."""
    return x.dim() == 4 or takes_onednn(x, *call)
