"""Rules for normalisations that kernels lay out differently from torch's meta kernels.

Source: aten/src/ATen/native/Normalization.cpp, group_norm.cpp and layer_norm.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..dtypes import HALVES
from ..norm_backend import is_cudnns, is_native_backward, is_rows, stands_for_cudnns
from .kernel_tables import CPU_RULES, KERNEL_RULES, register
from .layers import has_groups_in_rows, kept_statistics
from .registry import (
    FLOATS,
    Out,
    Outs,
    Sizes,
    channels_last,
    fresh,
    in_format_of,
    is_channels_last,
    is_contiguous,
    numel,
    only_wanted,
    sure,
)


def _row_major_first(x: Tensor) -> Out:
    """Return a new tensor like ``x``; a tensor both row-major and channels-last counts as row-major."""
    return fresh(x.shape, x.dtype) if is_contiguous(x) else in_format_of(x, x.shape, x.dtype)


def _is_whole(x: Tensor) -> bool:
    """Whether a tensor is row-major or channels-last without gaps."""
    if is_contiguous(x):
        return True
    if x.dim() not in (4, 5) or not numel(x.shape):
        return False
    return all(size == 1 or a == b for size, a, b in zip(x.shape, x.stride(), channels_last(x.shape)))


@register(CPU_RULES, "native_batch_norm")
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    *_: float,
) -> Outs:
    """The output, and mean and inverse deviation per channel."""
    sure(training or (mean is not None and var is not None))
    return _batch_normed(x, weight, bias, mean, var)


def _batch_normed(x: Tensor, *parameters: Tensor | None) -> Outs:
    _check_channels(x, *parameters)
    statistics = fresh(x.shape[1:2], kept_statistics(x, parameters[0]))
    return [_row_major_first(x), statistics, statistics]


def _check_channels(x: Tensor, *parameters: Tensor | None) -> None:
    sure(x.dim() >= 2 and numel(x.shape) and x.dtype in FLOATS)
    known = (x.dtype, torch.float32)
    sure(all(p is None or (p.shape == x.shape[1:2] and p.dtype in known) for p in parameters))


@register(CPU_RULES, "_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, *_: float
) -> Outs:
    """Batch norm in training without running statistics."""
    sure(training)
    return _batch_normed(x, weight, bias)


@register(CPU_RULES, "native_batch_norm_backward")
def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, training: bool, eps: float, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias; the input's keeps a format that it shares with the gradient."""
    return _batch_norm_gradients(grad, x, (weight, mean, var), wanted)


@register(CPU_RULES, "batch_norm_backward")
def any_batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor | None, var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, training: bool, eps: float, wanted: Sequence[bool],
    reserve: Tensor,
) -> Outs:  # fmt: skip
    """As :func:`batch_norm_backward`, to which it is dispatched on the CPU."""
    return _batch_norm_gradients(grad, x, (weight, mean, var), wanted)


def _batch_norm_gradients(
    grad: Tensor, x: Tensor, parameters: tuple[Tensor | None, ...], wanted: Sequence[bool]
) -> Outs:
    _check_channels(x, *parameters)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    alike = _is_whole(x) and _is_whole(grad) and is_channels_last(x) == is_channels_last(grad)
    of_x = _row_major_first(x) if alike else in_format_of(x, x.shape, x.dtype)
    parameter = fresh(x.shape[1:2], x.dtype if parameters[0] is None else parameters[0].dtype)
    return only_wanted((of_x, parameter, parameter), wanted)


@register(KERNEL_RULES, "native_batch_norm")
def batch_norm_on_cuda(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool, *_: float
) -> Outs:
    """In evaluation, where the operator stands for cuDNN's: that saves no statistics."""
    sure(x.device.type == "cuda" and not training and stands_for_cudnns(x, weight, bias, mean, var, training))
    _check_channels(x, weight, bias, mean, var)
    empty = fresh((0,), weight.dtype)
    return [in_format_of(x, x.shape, x.dtype), empty, empty]


@register(KERNEL_RULES, "native_batch_norm_backward")
def batch_norm_backward_on_cuda(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, training: bool, eps: float, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients; the input's is row-major, unless the kernel reads rows of channels in training."""
    sure(is_native_backward(x, weight, training))
    return _batch_norm_gradients_on_cuda(grad, x, (weight, mean, var), training, wanted)


@register(KERNEL_RULES, "batch_norm_backward")
def any_batch_norm_backward_on_cuda(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor | None, var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, training: bool, eps: float, wanted: Sequence[bool],
    reserve: Tensor,
) -> Outs:  # fmt: skip
    """As :func:`batch_norm_backward_on_cuda`, to which it is dispatched unless cuDNN is."""
    sure(not is_cudnns(x, weight))
    return _batch_norm_gradients_on_cuda(grad, x, (weight, mean, var), training, wanted)


def _batch_norm_gradients_on_cuda(
    grad: Tensor, x: Tensor, parameters: tuple[Tensor | None, ...], training: bool, wanted: Sequence[bool]
) -> Outs:
    _check_channels(x, *parameters)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    of_x = in_format_of(x, x.shape, x.dtype) if training and is_rows(x) else fresh(x.shape, x.dtype)
    parameter = fresh(x.shape[1:2], x.dtype if parameters[0] is None else parameters[0].dtype)
    return only_wanted((of_x, parameter, parameter), wanted)


@register(KERNEL_RULES, "cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(x: Tensor, grad: Tensor, weight: Tensor, *_: Any) -> Outs:
    """The gradients of input, in its memory format, weight and bias (aten/src/ATen/native/cudnn/BatchNorm.cpp).

    The decomposition, which torch's fakes run, imports its compiler first (seconds).
    """
    _check_channels(x, weight)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    parameter = fresh(weight.shape, weight.dtype)
    return [in_format_of(x, x.shape, x.dtype), parameter, parameter]


@register(CPU_RULES, "native_group_norm")
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, rest: int, groups: int, _: float
) -> Outs:
    """The output in the input's memory format, and mean and inverse deviation per sample and group."""
    _check_channels(x, weight, bias)
    sure(x.shape[:2] == (batch, channels) and numel(x.shape) == batch * channels * rest and channels % groups == 0)
    statistics = fresh((batch, groups), x.dtype)
    return [in_format_of(x, x.shape, x.dtype), statistics, statistics]


@register(CPU_RULES, "native_group_norm_backward")
def group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    batch: int, channels: int, rest: int, groups: int, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias; the input's keeps the input's memory format."""
    _check_channels(x, weight)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    parameter = fresh(x.shape[1:2], x.dtype if weight is None else weight.dtype)
    of_x = in_format_of(x, x.shape, x.dtype)
    return only_wanted((of_x, parameter, parameter), wanted)


@register(KERNEL_RULES, "native_group_norm_backward")
def group_norm_backward_in_rows(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    batch: int, channels: int, rest: int, groups: int, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias, row-major on the release whose kernels write rows."""
    sure(has_groups_in_rows() and grad.shape == x.shape and grad.dtype is x.dtype)
    parameter = fresh(x.shape[1:2], x.dtype if weight is None else weight.dtype)
    return only_wanted((fresh(x.shape, x.dtype), parameter, parameter), wanted)


@register(KERNEL_RULES, "native_layer_norm_backward")
def layer_norm_backward(
    grad: Tensor, x: Tensor, size: Sizes, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None,
    wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """Row-major, whatever the input's layout (``layer_norm.cpp``)."""
    sure(grad.shape == x.shape and grad.dtype is x.dtype and x.dtype in FLOATS and numel(x.shape))
    parameter = fresh(tuple(size), x.dtype if weight is None else weight.dtype)
    of_x = fresh(x.shape, x.dtype)
    return only_wanted((of_x, parameter, parameter), wanted)


@register(KERNEL_RULES, "_weight_norm_interface")
def weight_norm(x: Tensor, scale: Tensor, dim: int = 0) -> Outs:
    """The weight, and its norms in float32 at least: aten/src/ATen/native/WeightNorm.cpp and cuda/WeightNorm.cu."""
    sure(x.dim() and dim in (0, x.dim() - 1) and x.dtype is scale.dtype and x.dtype in FLOATS)
    sure(is_contiguous(x) and is_contiguous(scale) and numel(x.shape))
    sure(scale.shape == tuple(size if axis == dim else 1 for axis, size in enumerate(x.shape)))
    return [fresh(x.shape, x.dtype), fresh(scale.shape, torch.float32 if x.dtype in HALVES else x.dtype)]
