"""Rules for reductions, cumulative operators, sorting and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..dtypes import HALVES
from .pointwise import broadcast
from .registry import (
    FLOATS,
    INDICES,
    NUMBERS,
    Out,
    Outs,
    Shape,
    Sizes,
    axis_of,
    floats_of,
    fresh,
    is_contiguous,
    numel,
    preserved_strides,
    rule,
    sure,
)


def _reduced(x: Tensor, dims: int | Sizes | None, keepdim: bool) -> Shape:
    """Return the reduced shape; no axes means all axes."""
    dims = [dims] if isinstance(dims, int) else dims
    axes = [axis_of(dim, x.dim()) for dim in dims] if dims else list(range(x.dim()))
    sure(len(set(axes)) == len(axes))
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    return tuple(size for axis, size in enumerate(x.shape) if axis not in axes)


@rule("sum", "sum.dim_IntList", "prod", "prod.dim_int")
def sum_of(
    x: Tensor, dims: int | Sizes | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Out:
    """The sum; integers and booleans as int64."""
    sure(x.dtype in NUMBERS)
    return fresh(_reduced(x, dims, keepdim), dtype or (x.dtype if x.dtype in FLOATS else torch.int64))


@rule("mean", "mean.dim")
def mean(x: Tensor, dims: Sizes | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Out:
    """The mean; no rule for integers without a dtype."""
    dtype = dtype or x.dtype
    sure(x.dtype in NUMBERS and dtype in FLOATS)
    return fresh(_reduced(x, dims, keepdim), dtype)


@rule("var.correction", "std.correction")
def variance(x: Tensor, dims: Sizes | None = None, *, correction: float | None = None, keepdim: bool = False) -> Out:
    """The variance or standard deviation of floats."""
    sure(x.dtype in FLOATS)
    return fresh(_reduced(x, dims, keepdim), x.dtype)


@rule("var_mean.correction", "std_mean.correction")
def variance_and_mean(
    x: Tensor, dims: Sizes | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Outs:
    """The variance or standard deviation, and the mean."""
    out = variance(x, dims, keepdim=keepdim)
    return [out, out]


@rule("amax", "amin")
def extreme(x: Tensor, dims: Sizes = (), keepdim: bool = False) -> Out:
    """The extreme of floats along axes; no rule for empty tensors."""
    sure(x.dtype in FLOATS and numel(x.shape))
    return fresh(_reduced(x, dims, keepdim), x.dtype)


@rule("max", "min")
def extreme_of_all(x: Tensor) -> Out:
    """The extreme of all elements; no rule for empty tensors."""
    sure(x.dtype in NUMBERS and numel(x.shape))
    return fresh((), x.dtype)


@rule("max.dim", "min.dim")
def extreme_and_index(x: Tensor, dim: int, keepdim: bool = False) -> Outs:
    """The extremes along one axis and their indices; no rule for empty tensors."""
    sure(x.dtype in NUMBERS and numel(x.shape))
    shape = _reduced(x, dim, keepdim)
    return [fresh(shape, x.dtype), fresh(shape, torch.int64)]


@rule("argmax", "argmin")
def extreme_index(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Out:
    """The indices of the extremes along one axis."""
    sure(x.dtype in NUMBERS and x.dtype is not torch.bool and numel(x.shape))
    return fresh(_reduced(x, dim, keepdim), torch.int64)


@rule("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def all_or_any(x: Tensor, dims: int | Sizes | None = None, keepdim: bool = False) -> Out:
    """Booleans along the axes; no rule for uint8."""
    sure(x.dtype in NUMBERS and x.dtype is not torch.uint8 and dims != [])
    return fresh(_reduced(x, dims, keepdim), torch.bool)


@rule("linalg_vector_norm")
def vector_norm(
    x: Tensor,
    ord: float = 2,
    dims: Sizes | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Out:
    """The norm of floats along axes; no rule for another dtype."""
    sure(x.dtype in FLOATS and dtype is None and numel(x.shape))
    return fresh(_reduced(x, dims, keepdim), x.dtype)


@rule("cumsum", "cumprod")
def cumulative(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Out:
    """A tensor like the input, row-major; integers and booleans as int64."""
    sure(x.dtype in NUMBERS)
    axis_of(dim, x.dim())
    return fresh(x.shape, dtype or (x.dtype if x.dtype in FLOATS else torch.int64))


@rule("topk")
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Outs:
    """The k extremes along one axis and their indices."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and x.dtype in NUMBERS and 0 <= k <= x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [fresh(shape, x.dtype), fresh(shape, torch.int64)]


@rule("sort", "sort.stable")
def sorted_and_index(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Outs:
    """The sorted input and the indices, in the input's layout."""
    sure(x.dtype in NUMBERS)
    axis_of(dim, x.dim())
    return [(x.shape, preserved_strides(x), x.dtype), (x.shape, preserved_strides(x), torch.int64)]


NONE = 0
"""A loss per element; other reductions give one number."""


def _classes(x: Tensor, target: Tensor, weight: Tensor | None) -> torch.dtype:
    """Return the dtype of scores of classes whose targets and weights fit."""
    sure(x.dim() in (1, 2) and target.dtype is torch.int64 and target.shape == x.shape[:-1] and numel(x.shape))
    sure(weight is None or weight.shape == x.shape[-1:])
    return floats_of(x, weight)


def _pixels(x: Tensor, target: Tensor, weight: Tensor | None) -> torch.dtype:
    """The same of scores for each pixel of images."""
    sure(x.dim() == 4 and target.dtype is torch.int64 and target.shape == (x.shape[0], *x.shape[2:]) and numel(x.shape))
    sure(weight is None or weight.shape == (x.shape[1],))
    return floats_of(x, weight)


def _nll_loss(name: str, dtype_of: Callable[[Tensor, Tensor, Tensor | None], torch.dtype]) -> None:
    """Register a loss of classes and its gradient; ``dtype_of`` declines arguments that do not fit."""

    def forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, _: int) -> Outs:
        dtype = dtype_of(x, target, weight)
        return [fresh(target.shape if reduction == NONE else (), dtype), fresh((), dtype)]

    def backward(
        grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, _: int, total: Tensor
    ) -> Out:
        dtype_of(x, target, weight)
        sure(grad.shape == (target.shape if reduction == NONE else ()) and not total.dim() and is_contiguous(x))
        return fresh(x.shape, floats_of(x, grad, total))

    rule(f"{name}_forward")(forward)
    rule(f"{name}_backward")(backward)


_nll_loss("nll_loss", _classes)
_nll_loss("nll_loss2d", _pixels)


@rule("mse_loss", "smooth_l1_loss", "huber_loss")
def loss_of_a_difference(x: Tensor, target: Tensor, reduction: int = 1, *_: Any, **__: Any) -> Out:
    """The mean or sum of what two tensors of one dtype differ by."""
    sure(reduction != NONE)
    broadcast([x.shape, target.shape])
    return fresh((), floats_of(x, target))


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def loss_backward(grad: Tensor, x: Tensor, target: Tensor, *_: Any) -> Out:
    """The gradient, written into row-major zeros of the input's shape (``Loss.cpp``)."""
    sure(broadcast([x.shape, target.shape, grad.shape]) == x.shape)
    return fresh(x.shape, floats_of(x, target, grad))


@rule("binary_cross_entropy", "binary_cross_entropy_with_logits")
def binary_cross_entropy(x: Tensor, target: Tensor, *settings: Any) -> Out:
    """The mean or sum of the losses of probabilities or logits, with weights that broadcast."""
    weights = [value for value in settings if isinstance(value, Tensor)]
    sure(x.shape == target.shape and not any(value == NONE for value in settings if isinstance(value, int)))
    sure(all(broadcast([x.shape, weight.shape]) == x.shape for weight in weights))
    return fresh((), floats_of(x, target, *weights))


@rule("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Out:
    """The gradient of the probabilities, all row-major."""
    sure(grad.shape == (x.shape if reduction == NONE else ()) and x.shape == target.shape and numel(x.shape))
    sure(weight is None or (weight.shape == x.shape and is_contiguous(weight)))
    sure(all(map(is_contiguous, (grad, x, target))))
    return fresh(x.shape, floats_of(x, target, grad, weight))


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_backward(grad: Tensor, x: Tensor, *_: Any) -> Out:
    """The gradient of the scores, row-major; torch has no meta kernels, and none in half precision on the CPU."""
    sure(x.dim() in (1, 2) and numel(x.shape) and grad.shape in ((), x.shape[:-1]))
    sure(x.device.type == "cuda" or x.dtype not in HALVES)
    return fresh(x.shape, floats_of(x, grad))


@rule("_log_softmax_backward_data", "_softmax_backward_data")
def softmax_backward(grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Out:
    """The gradient of the scores, row-major."""
    sure(grad.shape == out.shape and floats_of(grad, out) is dtype and -out.dim() <= dim < out.dim())
    return fresh(grad.shape, dtype)


@rule("embedding_dense_backward")
def embedding_backward(grad: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool) -> Out:
    """The gradient of a table of vectors."""
    sure(indices.dtype in INDICES and grad.dtype in FLOATS and grad.dim() and grad.shape[:-1] == indices.shape)
    return fresh((rows, grad.shape[-1]), grad.dtype)
