"""Rules for reductions, cumulative operators and sorting."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import FLOATS, NUMBERS, Out, Outs, Shape, Sizes, axis_of, fresh, numel, preserved_strides, rule, sure


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
