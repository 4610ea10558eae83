"""Whether oneDNN or cuDNN runs a convolution, in which memory format the result comes, and whether it may be in TF32.

Source: ATen/native/Convolution.cpp, ``ConvParams::use_mkldnn``, ``use_cudnn`` and ``determine_backend_memory_format``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..data.capability import Capability
from ..live.fakes import assumed_capability
from .processor import is_half, multiplies

ENOUGH = 20480
"""Elements of an image above which torch prefers oneDNN; only four of its axes are counted."""


def allows_tf32(library: str = "cudnn") -> bool:
    """Whether float32 convolutions of "cudnn", or products of "cuda" (cuBLAS), may run on tensor cores in TF32."""
    settings: Any = torch.backends.cudnn if library == "cudnn" else torch.backends.cuda.matmul
    scope = getattr(settings, "conv", None) if library == "cudnn" else settings
    precision = getattr(scope, "fp32_precision", None)  # Since torch 2.9.
    return bool(settings.allow_tf32 if precision is None else precision == "tf32")


def settings() -> tuple[int, bool, bool, Capability]:
    """Return the global settings that the choice depends on."""
    enabled = bool(torch.backends.mkldnn.enabled), bool(torch.backends.cudnn.enabled)
    return torch.get_num_threads(), *enabled, assumed_capability()


def takes_cudnn(
    dtype: torch.dtype, stride: Sequence[int], output_padding: Sequence[int], capability: Capability
) -> bool:
    """Whether cuDNN is considered for a convolution on CUDA."""
    if not torch.backends.cudnn.enabled or (dtype is torch.bfloat16 and capability < (8, 0)):
        return False
    return all(more < step for more, step in zip(output_padding, stride))


def keeps_last_on_cuda(dtype: torch.dtype, stride: Sequence[int], output_padding: Sequence[int]) -> bool:
    """Whether results are channels-last if the input or the weight is: cuDNN's are, those of ATen's own kernels not."""
    return dtype is not torch.float64 and takes_cudnn(dtype, stride, output_padding, assumed_capability())


def takes_onednn(
    x: Any, weight: Any, stride: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> bool:  # fmt: skip
    """Whether oneDNN runs the convolution: float32 unless small, or 1x1 on one thread; half precision if supported.

    The width of a volume is not counted, so a large volume may count as small.
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
    """Whether the result of a channels-last convolution is channels-last too; for volumes, only oneDNN's is."""
    return x.dim() == 4 or takes_onednn(x, *call)
