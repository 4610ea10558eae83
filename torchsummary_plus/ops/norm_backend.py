"""Which library runs a batch norm on CUDA, and which kernel.

Source: aten/src/ATen/native/Normalization.cpp and cuda/Normalization.cu.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

MOST_IN_TRAINING, MOST_IN_EVALUATION = 880801, 65535
"""Largest batches that cuDNN normalises."""


def is_native(x: Tensor, weight: Any) -> bool:
    """Whether torch's own kernel runs; where torch has no cuDNN the operator also stands for cuDNN's."""
    return torch.backends.cudnn.is_available() or not is_cudnns(x, weight)


def is_native_backward(x: Tensor, weight: Any, training: bool) -> bool:
    """As :func:`is_native` for the backward, which in evaluation is torch's own also after cuDNN's forward."""
    return not training or is_native(x, weight)


def stands_for_cudnns(x: Tensor, *arguments: Any) -> bool:
    """Whether torch has no cuDNN, which would run the batch norm; the arguments are those of :func:`is_cudnns_call`."""
    return not torch.backends.cudnn.is_available() and is_cudnns_call(x, *arguments)


def is_cudnns_call(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool) -> bool:
    """As :func:`is_cudnns`, by all arguments of a batch norm that is not empty."""
    has_statistics = mean is not None and var is not None
    has_none = mean is None and var is None
    most = MOST_IN_TRAINING if training else MOST_IN_EVALUATION
    return (
        is_cudnns(x, weight)
        and bias is not None
        and (has_statistics or (has_none and training))
        and x.numel() > 0
        and x.shape[0] <= most
    )


def is_cudnns(x: Tensor, weight: Any) -> bool:
    """Whether torch chooses cuDNN (``_select_batch_norm_backend``)."""
    if weight is None or x.dim() <= 2 or not torch.backends.cudnn.enabled:
        return False
    is_single = weight.dtype is torch.float32
    return torch.bfloat16 not in (x.dtype, weight.dtype) and (x.dtype is not torch.float16 or is_single)


def is_rows(x: Tensor) -> bool:
    """Whether torch reads a tensor as rows of channels (``batch_norm_use_channels_last_kernels``)."""
    is_last = x.dim() in FORMATS and x.is_contiguous(memory_format=FORMATS[x.dim()])
    return is_last or (x.is_contiguous() and x.stride(1) == 1)
