"""Rules for reductions, and for the operators that make, copy, join, pick and move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .rulebook import (
    FLOATS,
    INDICES,
    NUMBERS,
    Out,
    Outs,
    Shape,
    axis_of,
    channels_last,
    contiguous,
    formatted,
    fresh,
    is_channels_last,
    is_contiguous,
    numel,
    preserved,
    rule,
    sure,
)
from .rules_pointwise import broadcast, dtype_of_number, promoted

Sizes = Sequence[int]


# Reductions


def _reduced(x: Tensor, dims: int | Sizes | None, keepdim: bool) -> Shape:
    """The shape that is left; no axes at all means all of them."""
    dims = [dims] if isinstance(dims, int) else dims
    axes = [axis_of(dim, x.dim()) for dim in dims] if dims else list(range(x.dim()))
    sure(len(set(axes)) == len(axes))
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    return tuple(size for axis, size in enumerate(x.shape) if axis not in axes)


@rule("sum", "sum.dim_IntList", "prod", "prod.dim_int")
def total(
    x: Tensor, dims: int | Sizes | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Out:
    sure(x.dtype in NUMBERS)
    return fresh(_reduced(x, dims, keepdim), dtype or (x.dtype if x.dtype in FLOATS else torch.int64))


@rule("mean", "mean.dim")
def mean(x: Tensor, dims: Sizes | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Out:
    dtype = dtype or x.dtype
    sure(x.dtype in NUMBERS and dtype in FLOATS)
    return fresh(_reduced(x, dims, keepdim), dtype)


@rule("var.correction", "std.correction")
def variance(x: Tensor, dims: Sizes | None = None, *, correction: float | None = None, keepdim: bool = False) -> Out:
    sure(x.dtype in FLOATS)
    return fresh(_reduced(x, dims, keepdim), x.dtype)


@rule("var_mean.correction", "std_mean.correction")
def variance_and_mean(
    x: Tensor, dims: Sizes | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Outs:
    out = variance(x, dims, keepdim=keepdim)
    return [out, out]


@rule("amax", "amin")
def extreme(x: Tensor, dims: Sizes = (), keepdim: bool = False) -> Out:
    sure(x.dtype in FLOATS and numel(x.shape))
    return fresh(_reduced(x, dims, keepdim), x.dtype)


@rule("logsumexp")
def logsumexp(x: Tensor, dims: Sizes, keepdim: bool = False) -> Out:
    sure(dims)
    return extreme(x, dims, keepdim)


@rule("max", "min")
def overall(x: Tensor) -> Out:
    sure(x.dtype in NUMBERS and numel(x.shape))
    return fresh((), x.dtype)


@rule("max.dim", "min.dim")
def best_and_where(x: Tensor, dim: int, keepdim: bool = False) -> Outs:
    sure(x.dtype in NUMBERS and numel(x.shape))
    shape = _reduced(x, dim, keepdim)
    return [fresh(shape, x.dtype), fresh(shape, torch.int64)]


@rule("argmax", "argmin")
def where_best(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Out:
    sure(x.dtype in NUMBERS and x.dtype is not torch.bool and numel(x.shape))
    return fresh(_reduced(x, dim, keepdim), torch.int64)


@rule("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def whether(x: Tensor, dims: int | Sizes | None = None, keepdim: bool = False) -> Out:
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
    sure(x.dtype in FLOATS and dtype is None and numel(x.shape))
    return fresh(_reduced(x, dims, keepdim), x.dtype)


@rule("norm.ScalarOpt_dim")
def norm(x: Tensor, p: float | None, dims: Sizes, keepdim: bool = False) -> Out:
    return vector_norm(x, 2, dims, keepdim)


@rule("cumsum", "cumprod")
def cumulated(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Out:
    sure(x.dtype in NUMBERS)
    axis_of(dim, x.dim())
    return fresh(x.shape, dtype or (x.dtype if x.dtype in FLOATS else torch.int64))


@rule("topk")
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Outs:
    axis = axis_of(dim, x.dim())
    sure(x.dim() and x.dtype in NUMBERS and 0 <= k <= x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [fresh(shape, x.dtype), fresh(shape, torch.int64)]


@rule("sort", "sort.stable")
def ordered(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Outs:
    sure(x.dtype in NUMBERS)
    axis_of(dim, x.dim())
    return [(x.shape, preserved(x), x.dtype), (x.shape, preserved(x), torch.int64)]


# Joining and picking


@rule("cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Out:
    """An empty vector among tensors of higher rank is left out, as torch's legacy rule has it: no rule here."""
    sure(tensors)
    first = tensors[0]
    axis = axis_of(dim, first.dim())
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    sure(first.dim() and all(t.dim() == first.dim() for t in tensors))
    sure(all((*t.shape[:axis], *t.shape[axis + 1 :]) == rest for t in tensors) and all(numel(t.shape) for t in tensors))
    shape = (*first.shape[:axis], sum(t.shape[axis] for t in tensors), *first.shape[axis + 1 :])
    innermost = [is_channels_last(tensor) for tensor in tensors]
    dtype = promoted(tensors)
    return (shape, channels_last(shape), dtype) if all(innermost) else fresh(shape, dtype)


@rule("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Out:
    sure(tensors and all(t.shape == tensors[0].shape for t in tensors))
    shape = tensors[0].shape
    axis = axis_of(dim, len(shape) + 1)
    sure(len(shape) not in (3, 4) or all(map(is_contiguous, tensors)))
    return fresh((*shape[:axis], len(tensors), *shape[axis:]), promoted(tensors))


@rule("index_select")
def index_select(x: Tensor, dim: int, index: Tensor) -> Out:
    axis = axis_of(dim, x.dim())
    sure(x.dim() and index.dim() == 1 and index.dtype in INDICES)
    return fresh((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), x.dtype)


@rule("gather")
def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Out:
    axis = axis_of(dim, x.dim())
    sure(x.dim() and index.dim() == x.dim() and index.dtype is torch.int64)
    sure(all(a <= b or place == axis for place, (a, b) in enumerate(zip(index.shape, x.shape))))
    return fresh(index.shape, x.dtype)


@rule("index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Out:
    """Integer indices side by side into a row-major tensor; whatever they pick lies row-major too."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    sure(given and len(indices) <= x.dim() and axes == list(range(axes[0], axes[-1] + 1)) and numel(x.shape))
    sure(x.stride() == contiguous(x.shape) and all(i.dtype in INDICES and is_contiguous(i) for i in given))
    picked = broadcast([index.shape for index in given])
    sure(picked)
    return fresh((*x.shape[: axes[0]], *picked, *x.shape[axes[-1] + 1 :]), x.dtype)


# Moving


@rule("roll")
def roll(x: Tensor, shifts: Sizes, dims: Sizes = ()) -> Out:
    sure(x.dim() and numel(x.shape) and len(shifts) == (len(dims) or 1))
    for dim in dims:
        axis_of(dim, x.dim())
    return fresh(x.shape, x.dtype)


@rule("flip")
def flip(x: Tensor, dims: Sizes) -> Out:
    sure(len({axis_of(dim, x.dim()) for dim in dims}) == len(dims))
    return x.shape, preserved(x), x.dtype


@rule("repeat")
def repeat(x: Tensor, repeats: Sizes) -> Out:
    missing = len(repeats) - x.dim()
    sure(missing >= 0 and all(times >= 0 for times in repeats))
    return fresh(tuple(times * size for times, size in zip(repeats, (*(1,) * missing, *x.shape))), x.dtype)


@rule("tril", "triu")
def triangle(x: Tensor, diagonal: int = 0) -> Out:
    sure(x.dim() >= 2)
    return fresh(x.shape, x.dtype)


# Copies and factories


@rule("clone")
def clone(x: Tensor, *, memory_format: torch.memory_format | None = None) -> Out:
    return x.shape, formatted(x, memory_format), x.dtype


@rule("_to_copy", "empty_like", "zeros_like", "ones_like")
def like(
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    memory_format: torch.memory_format | None = None,
    **_: object,
) -> Out:
    sure(layout in (None, torch.strided))
    return x.shape, formatted(x, memory_format), dtype or x.dtype


@rule("rand_like", "randn_like")
def random_like(x: Tensor, **options: Any) -> Out:
    out = like(x, **options)
    sure(out[2] in FLOATS)
    return out


@rule("full_like")
def full_like(x: Tensor, value: float, **options: Any) -> Out:
    return like(x, **options)


@rule("new_empty", "new_zeros", "new_ones")
def new(x: Tensor, size: Sizes, *, dtype: torch.dtype | None = None, **options: object) -> Out:
    sure(options.get("layout") in (None, torch.strided) and all(length >= 0 for length in size))
    return fresh(size, dtype or x.dtype)


@rule("new_full")
def new_full(x: Tensor, size: Sizes, value: float, **options: Any) -> Out:
    return new(x, size, **options)


@rule("zeros", "ones", "empty.memory_format", "rand", "randn")
def made(size: Sizes, *, dtype: torch.dtype | None = None, **options: object) -> Out:
    sure(options.get("layout") in (None, torch.strided) and options.get("memory_format") is None)
    sure(all(length >= 0 for length in size))
    return fresh(size, dtype or torch.get_default_dtype())


@rule("full")
def full(size: Sizes, value: float, *, dtype: torch.dtype | None = None, **options: Any) -> Out:
    return made(size, dtype=dtype or dtype_of_number(value), **options)


@rule("scalar_tensor")
def scalar_tensor(value: float, **options: Any) -> Out:
    return made((), **options)


@rule("arange", "arange.start", "arange.start_step")
def arange(*numbers: int, dtype: torch.dtype | None = None, **options: Any) -> Out:
    sure(all(type(number) is int for number in numbers))
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    sure(step and (end - start) * step >= 0)
    return made([-((start - end) // step)], dtype=dtype or torch.int64, **options)
