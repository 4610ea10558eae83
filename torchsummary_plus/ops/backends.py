"""Which library runs a convolution or a batch norm, in which layout and precision; what the CPU's kernels support.

Sources: aten/src/ATen/native/Convolution.cpp, ``ConvParams::use_mkldnn``, ``use_cudnn`` and
``determine_backend_memory_format``; aten/src/ATen/native/Normalization.cpp and cuda/Normalization.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..data.capability import Capability
from ..live import compat
from ..live.fakes import Fake

HALVES = (torch.float16, torch.bfloat16)
"""Half precision."""
ENOUGH = 20480
"""Elements of an image above which torch prefers oneDNN; only four of its axes are counted."""


def allows_tf32(library: str = "cudnn") -> bool:
    """Whether float32 convolutions of "cudnn", or products of "cuda" (cuBLAS), may run on tensor cores in TF32."""
    settings: Any = torch.backends.cudnn if library == "cudnn" else torch.backends.cuda.matmul
    scope = getattr(settings, "conv", None) if library == "cudnn" else settings
    precision = getattr(scope, "fp32_precision", None)  # Since torch 2.9.
    return bool(settings.allow_tf32 if precision is None else precision == "tf32")


def takes_cudnn(
    dtype: torch.dtype, stride: Sequence[int], output_padding: Sequence[int], capability: Capability
) -> bool:
    """Whether cuDNN is considered for a convolution on CUDA."""
    if not torch.backends.cudnn.enabled or (dtype is torch.bfloat16 and capability < (8, 0)):
        return False
    return all(more < step for more, step in zip(output_padding, stride))


def keeps_last_on_cuda(dtype: torch.dtype, stride: Sequence[int], output_padding: Sequence[int]) -> bool:
    """Whether results are channels-last if the input or the weight is: cuDNN's are, those of ATen's own kernels not."""
    return dtype is not torch.float64 and takes_cudnn(dtype, stride, output_padding, Fake.capability)


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
    if x.dtype in HALVES:
        return multiplies(x.dtype)
    if x.dtype is not torch.float32:
        return False
    kernel = (1, *weight.shape[2:])[-2:]
    is_large = x.shape[0] > 1 or groups > 1 or prod(x.shape[:4]) > ENOUGH or min(kernel) > 3
    is_pointwise = kernel == (1, 1) and all(size == 1 for size in (*stride, *dilation))
    return is_large and (not is_pointwise or x.shape[0] >= 16 or torch.get_num_threads() > 1)


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

MOST_IN_TRAINING, MOST_IN_EVALUATION = 880801, 65535
"""Largest batches that cuDNN normalises."""


def is_native_backward(x: Tensor, weight: Any, training: bool) -> bool:
    """Whether torch's own kernel runs a batch norm's backward: in evaluation always, also after cuDNN's forward.

    Where torch has no cuDNN, the operator also stands for cuDNN's.
    """
    return not training or torch.backends.cudnn.is_available() or not _is_cudnns(x, weight)


def stands_for_cudnns(x: Tensor, *arguments: Any) -> bool:
    """Whether torch has no cuDNN, which would run this batch norm of a tensor that is not empty.

    The other arguments are weight, bias, running mean and variance, and whether it trains.
    """
    weight, bias, mean, var, training = arguments
    has_statistics = mean is not None and var is not None
    has_none = mean is None and var is None
    most = MOST_IN_TRAINING if training else MOST_IN_EVALUATION
    is_its_call = bias is not None and (has_statistics or (has_none and training)) and x.numel() > 0
    is_its_call = is_its_call and x.shape[0] <= most and _is_cudnns(x, weight)
    return is_its_call and not torch.backends.cudnn.is_available()


def _is_cudnns(x: Tensor, weight: Any) -> bool:
    """Whether torch chooses cuDNN (``_select_batch_norm_backend``)."""
    if weight is None or x.dim() <= 2 or not torch.backends.cudnn.enabled:
        return False
    is_single = weight.dtype is torch.float32
    return torch.bfloat16 not in (x.dtype, weight.dtype) and (x.dtype is not torch.float16 or is_single)


def is_rows(x: Tensor) -> bool:
    """Whether torch reads a tensor as rows of channels (``batch_norm_use_channels_last_kernels``)."""
    is_last = x.dim() in FORMATS and x.is_contiguous(memory_format=FORMATS[x.dim()])
    return is_last or (x.is_contiguous() and x.stride(1) == 1)


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN reports support for a half-precision dtype at all; builds without oneDNN have none.

    Source: ideep's ``has_bf16_type_support`` and ``has_fp16_type_support``.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def float32_precisions() -> tuple[str, ...]:
    """Return the precisions in which torch is told to compute on float32: "bf16" and "tf32" are lower.

    Before torch 2.9, ``torch.set_float32_matmul_precision`` is the only way.
    """
    own = compat.float32_precision
    return torch.get_float32_matmul_precision(), own("mkldnn", "matmul"), own("mkldnn", "conv"), own("mkldnn", "rnn")
