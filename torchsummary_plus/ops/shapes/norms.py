"""Rules for normalisations and softmax.

Source: aten/src/ATen/native/Normalization.cpp, group_norm.cpp, layer_norm.cpp, cudnn/BatchNorm.cpp and WeightNorm.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...live.versions import since
from ..backends import is_native_backward, is_rows, stands_for_cudnns
from ..dtypes import HALVES
from .registry import (
    FLOATS,
    Out,
    Outs,
    Sizes,
    axis_of,
    fresh,
    in_format_of,
    is_channels_last,
    is_contiguous,
    numel,
    only_wanted,
    preserved_strides,
    rule,
    sure,
)


def statistics_of(x: Tensor) -> torch.dtype:
    """Return the dtype in which statistics accumulate."""
    return torch.float32 if x.dtype in HALVES else x.dtype


def kept_statistics(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """Return the dtype of a norm's statistics: the CPU keeps halves beside parameters that are no float32."""
    is_mixed = weight is not None and weight.dtype is not x.dtype
    return statistics_of(x) if is_mixed or x.device.type != "cpu" else x.dtype


def _check_channels(x: Tensor, *parameters: Tensor | None) -> None:
    sure(x.dim() >= 2 and numel(x.shape) and x.dtype in FLOATS)
    dtypes = (x.dtype, torch.float32)
    sure(all(p is None or (p.shape == x.shape[1:2] and p.dtype in dtypes) for p in parameters))


# Batch norm


@rule("native_batch_norm")
def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool,
    *_: float,
) -> Outs:  # fmt: skip
    """The output, and mean and inverse deviation per channel, which cuDNN's, if this stands for it, saves to train."""
    sure(training or (mean is not None and var is not None))
    _check_channels(x, weight, bias, mean, var)
    statistics, out = fresh(x.shape[1:2], kept_statistics(x, weight)), in_format_of(x, x.shape, x.dtype)
    if x.device.type == "cpu":
        out = fresh(x.shape, x.dtype) if is_contiguous(x) else out  # Also if it is channels-last as well.
    elif not stands_for_cudnns(x, weight, bias, mean, var, training):
        out = x.shape, preserved_strides(x), x.dtype
    elif not training:
        statistics = fresh((0,), weight.dtype)  # type: ignore[union-attr]
    return [out, statistics, statistics]


@rule("cudnn_batch_norm")
def cudnn_batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool, *_: float
) -> Outs:
    """cuDNN's batch norm, with statistics only in training and an empty reserve."""
    _check_channels(x, weight, bias, mean, var)
    statistics = fresh(weight.shape, statistics_of(x)) if training else fresh((0,), weight.dtype)
    return [in_format_of(x, x.shape, x.dtype), statistics, statistics, fresh((0,), torch.uint8)]


@rule("native_batch_norm_backward")
def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, training: bool, eps: float, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias.

    On the CPU the input's keeps a format that it shares with the gradient. On CUDA it is row-major, unless cuDNN runs
    or the kernel reads rows of channels in training.
    """
    _check_channels(x, weight, mean, var)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    of_x = in_format_of(x, x.shape, x.dtype)
    if x.device.type == "cuda":
        if is_native_backward(x, weight, training) and not (training and is_rows(x)):
            of_x = fresh(x.shape, x.dtype)
    elif is_contiguous(x) and is_contiguous(grad) and is_channels_last(x) == is_channels_last(grad):
        of_x = fresh(x.shape, x.dtype)
    parameter = fresh(x.shape[1:2], x.dtype if weight is None else weight.dtype)
    return only_wanted((of_x, parameter, parameter), wanted)


@rule("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(x: Tensor, grad: Tensor, weight: Tensor, *_: Any) -> Outs:
    """The gradients of input, in its memory format, weight and bias."""
    _check_channels(x, weight)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    parameter = fresh(weight.shape, weight.dtype)
    return [in_format_of(x, x.shape, x.dtype), parameter, parameter]


# Batch norm with statistics from all ranks (``nn.SyncBatchNorm``): cuda/Normalization.cu; torch has no meta kernels


@rule("batch_norm_stats")
def batch_norm_stats(x: Tensor, eps: float) -> Outs:
    """Mean and inverse deviation of each channel."""
    sure(x.dim() >= 2 and x.dtype in FLOATS)
    return [fresh(x.shape[1:2], statistics_of(x))] * 2


@rule("batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(x: Tensor, mean: Tensor, invstd: Tensor, *_: Any) -> Outs:
    """The same of all ranks, whose statistics are the rows of ``mean`` and ``invstd``."""
    sure(mean.dim() == 2 and mean.shape == invstd.shape)
    return [fresh(mean.shape[1:], statistics_of(mean))] * 2


@rule("batch_norm_elemt")
def batch_norm_elemt(x: Tensor, *_: Any) -> Out:
    """The input normalised by given statistics."""
    sure(x.dim() >= 2 and x.dtype in FLOATS and (is_contiguous(x) or is_channels_last(x)))
    return in_format_of(x, x.shape, x.dtype)


@rule("batch_norm_backward_elemt")
def batch_norm_backward_elemt(grad: Tensor, x: Tensor, *_: Any) -> Out:
    """The gradient of the input."""
    return batch_norm_elemt(x)


@rule("batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None,
    for_input: bool, for_weight: bool, for_bias: bool,
) -> Outs:  # fmt: skip
    """Two sums over each channel, and the gradients of weight and bias: in channels last both, whichever is wanted."""
    dtype = mean.dtype if weight is None else weight.dtype
    channels = x.shape[1:2]
    if x.stride(1) == 1:
        grads = fresh(channels if weight is not None else (0,), dtype)
        return [*[fresh(channels, mean.dtype)] * 2, grads, grads]
    sums = fresh(channels, mean.dtype) if for_input else None
    return [sums, sums, *(fresh(channels, dtype) if wanted else None for wanted in (for_weight, for_bias))]


# Groups, layers, weights


GROUPS_IN_ROWS = "2.14", "2.15"
"""The release whose group norm is row-major except on the CPU, and the next one; measured on 2.13, 2.14 and 2.15."""


def _grouped(x: Tensor) -> Out:
    """Return a group norm's output or its input's gradient."""
    first, beyond = GROUPS_IN_ROWS
    in_rows = x.device.type == "cuda" and since(first) and not since(beyond)
    return fresh(x.shape, x.dtype) if in_rows else in_format_of(x, x.shape, x.dtype)


@rule("native_group_norm")
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, rest: int, groups: int, _: float
) -> Outs:
    """The output, and mean and inverse deviation per sample and group."""
    _check_channels(x, weight, bias)
    sure(x.shape[:2] == (batch, channels) and numel(x.shape) == batch * channels * rest)
    sure(groups > 0 and channels % groups == 0)
    statistics = fresh((batch, groups), x.dtype if x.device.type != "cpu" else kept_statistics(x, weight))
    return [_grouped(x), statistics, statistics]


@rule("native_group_norm_backward")
def group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    batch: int, channels: int, rest: int, groups: int, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias."""
    _check_channels(x, weight)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    of_x, parameter = _grouped(x), fresh(x.shape[1:2], x.dtype if weight is None else weight.dtype)
    sure(x.device.type == "cpu" or of_x == fresh(x.shape, x.dtype))
    return only_wanted((of_x, parameter, parameter), wanted)


@rule("native_layer_norm")
def layer_norm(x: Tensor, size: Sizes, weight: Tensor | None, bias: Tensor | None, _: float) -> Outs:
    """The output, and mean and inverse deviation per row."""
    out, (shape, strides, _accumulated) = _over_last(x, size, weight, bias)
    statistics = shape, strides, kept_statistics(x, weight)
    return [out, statistics, statistics]


@rule("native_layer_norm_backward")
def layer_norm_backward(
    grad: Tensor, x: Tensor, size: Sizes, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None,
    wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """Row-major, whatever the input's layout."""
    sure(grad.shape == x.shape and grad.dtype is x.dtype and x.dtype in FLOATS and numel(x.shape))
    parameter = fresh(tuple(size), x.dtype if weight is None else weight.dtype)
    return only_wanted((fresh(x.shape, x.dtype), parameter, parameter), wanted)


@rule("_fused_rms_norm")
def rms_norm(x: Tensor, size: Sizes, weight: Tensor | None, _: float | None) -> Outs:
    """The output and the inverse root mean square per row."""
    sure(not is_channels_last(x) and (weight is None or weight.dtype is x.dtype))
    return [*_over_last(x, size, weight)]


def _over_last(x: Tensor, size: Sizes, *parameters: Tensor | None) -> tuple[Out, Out]:
    """Return the output of a normalisation over the last axes, and one of its statistics."""
    shape, rank, dtypes = tuple(size), x.dim() - len(size), (x.dtype, torch.float32)
    sure(shape and rank >= 0 and x.shape[rank:] == shape and x.dtype in FLOATS and numel(x.shape))
    sure(all(p is None or (p.shape == shape and p.dtype in dtypes) for p in parameters))
    return fresh(x.shape, x.dtype), fresh((*x.shape[:rank], *(1,) * len(shape)), statistics_of(x))


@rule("_weight_norm_interface")
def weight_norm(x: Tensor, scale: Tensor, dim: int = 0) -> Outs:
    """The weight, and its norms in float32 at least."""
    sure(x.dim() and dim in (0, x.dim() - 1) and x.dtype is scale.dtype and x.dtype in FLOATS)
    sure(is_contiguous(x) and is_contiguous(scale) and numel(x.shape))
    sure(scale.shape == tuple(size if axis == dim else 1 for axis, size in enumerate(x.shape)))
    return [fresh(x.shape, x.dtype), fresh(scale.shape, statistics_of(x))]


@rule("_softmax", "_log_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Out:
    """A row-major tensor like the input."""
    sure(x.dtype in FLOATS and not half_to_float)
    axis_of(dim, x.dim())
    return fresh(x.shape, x.dtype)


@rule("_safe_softmax")
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Out:
    """A row-major tensor like the input, with rows of -inf as zeros."""
    sure(dtype in (None, x.dtype))
    return softmax(x, dim, False)
