"""Rules for the kernels of batch norm with statistics from all ranks (``nn.SyncBatchNorm``).

Source: aten/src/ATen/native/cuda/Normalization.cu and Normalization.cuh. torch has no meta kernels for them.
"""

from __future__ import annotations

from torch import Tensor

from .layers import statistics_of
from .registry import FLOATS, Out, Outs, fresh, in_format_of, is_channels_last, is_contiguous, rule, sure


def _as_input(x: Tensor) -> Out:
    sure(x.dim() >= 2 and x.dtype in FLOATS and (is_contiguous(x) or is_channels_last(x)))
    return in_format_of(x, tuple(x.shape), x.dtype)


@rule("batch_norm_stats")
def batch_norm_stats(x: Tensor, eps: float) -> Outs:
    """Mean and inverse deviation of each channel."""
    sure(x.dim() >= 2 and x.dtype in FLOATS)
    statistics = fresh(x.shape[1:2], statistics_of(x))
    return [statistics, statistics]


@rule("batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    x: Tensor, mean: Tensor, invstd: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, counts: Tensor,
) -> Outs:  # fmt: skip
    """The same of all ranks, whose statistics are the rows of ``mean`` and ``invstd``."""
    sure(mean.dim() == 2 and mean.shape == invstd.shape)
    statistics = fresh(mean.shape[1:], statistics_of(mean))
    return [statistics, statistics]


@rule("batch_norm_elemt")
def batch_norm_elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Out:
    """The input normalised by given statistics."""
    return _as_input(x)


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


@rule("batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, sums: Tensor, products: Tensor,
    counts: Tensor,
) -> Out:  # fmt: skip
    """The gradient of the input."""
    return _as_input(x)
