"""Rules for operators that join, select, move, copy and create."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..strides import contiguous
from .pointwise import broadcast
from .registry import (
    FLOATS,
    INDICES,
    Out,
    Sizes,
    axis_of,
    channels_last,
    dense_strides,
    fresh,
    in_format_of,
    is_channels_last,
    rule,
    strides_in_format,
    sure,
)

# Joining and picking


@rule("cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Out:
    """No rule for torch's legacy case, which skips empty vectors among tensors of higher rank."""
    sure(tensors)
    first = tensors[0]
    axis = axis_of(dim, first.dim())
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    sure(first.dim() and all(t.dim() == first.dim() for t in tensors))
    sure(all((*t.shape[:axis], *t.shape[axis + 1 :]) == rest for t in tensors) and all(t.numel() for t in tensors))
    shape = (*first.shape[:axis], sum(t.shape[axis] for t in tensors), *first.shape[axis + 1 :])
    innermost = [is_channels_last(tensor) for tensor in tensors]
    return (shape, channels_last(shape), None) if all(innermost) else fresh(shape, None)


@rule("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Out:
    """Tensors of one shape along a new axis."""
    sure(tensors and all(t.shape == tensors[0].shape for t in tensors))
    shape = tensors[0].shape
    axis = axis_of(dim, len(shape) + 1)
    sure(len(shape) not in (3, 4) or all(tensor.is_contiguous() for tensor in tensors))
    return fresh((*shape[:axis], len(tensors), *shape[axis:]), None)


@rule("index_select")
def index_select(x: Tensor, dim: int, index: Tensor) -> Out:
    """The selected indices along one axis."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and index.dim() == 1 and index.dtype in INDICES)
    return fresh((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), x.dtype)


@rule("gather")
def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Out:
    """One element per index."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and index.dim() == x.dim() and index.dtype is torch.int64)
    sure(all(a <= b or place == axis for place, (a, b) in enumerate(zip(index.shape, x.shape))))
    return fresh(index.shape, x.dtype)


@rule("index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Out:
    """Integer indices: the selected axes replace the indexed ones, or come first if those are not adjacent."""
    tensors = [index for index in indices if index is not None]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    others = [axis for axis in range(x.dim()) if axis not in axes]
    sure(tensors and len(indices) <= x.dim() and x.numel())
    sure(all(index.dtype in INDICES and index.stride() == contiguous(index.shape) for index in tensors))
    picked = broadcast([index.shape for index in tensors])
    sure(picked)
    first = axes[0] if axes[-1] - axes[0] < len(axes) else 0
    shape, strides = [x.shape[axis] for axis in others], [x.stride()[axis] for axis in others]
    shape[first:first], strides[first:first] = picked, [0] * len(picked)
    sure(prod(shape))
    return tuple(shape), dense_strides(shape, [strides]), x.dtype


# Moving


@rule("roll")
def roll(x: Tensor, shifts: Sizes, dims: Sizes = ()) -> Out:
    """Row-major; on the CPU two parts concatenated, axis by axis, in a channels-last format that both have."""
    sure(x.dim() and x.numel() and len(shifts) == (len(dims) or 1))
    cut = [bool(shift % x.shape[axis_of(dim, x.dim())]) for shift, dim in zip(shifts, dims)]
    if not cut or x.device.type == "cuda" or not is_channels_last(x):
        return fresh(x.shape, x.dtype)
    sure(all(cut) or not any(cut))
    return in_format_of(x, x.shape, x.dtype) if all(cut) else fresh(x.shape, x.dtype)


@rule("repeat")
def repeat(x: Tensor, repeats: Sizes) -> Out:
    """The input repeated along each axis, row-major; ``repeats`` may add axes in front."""
    missing = len(repeats) - x.dim()
    sure(missing >= 0 and all(times >= 0 for times in repeats))
    return fresh(tuple(times * size for times, size in zip(repeats, (*(1,) * missing, *x.shape))), x.dtype)


# Copies and factories


@rule("clone", "_to_copy", "empty_like", "zeros_like", "ones_like", "full_like")
def like(
    x: Tensor, *_: float, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    memory_format: torch.memory_format | None = None, **__: object,
) -> Out:  # fmt: skip
    """A tensor like the input, in the dtype and memory format."""
    sure(layout in (None, torch.strided))
    return x.shape, strides_in_format(x, memory_format), dtype or x.dtype


@rule("rand_like", "randn_like")
def random_like(x: Tensor, **options: Any) -> Out:
    """A floating-point tensor like the input."""
    out = like(x, **options)
    sure(out[2] in FLOATS)
    return out


@rule("new_empty", "new_zeros", "new_ones", "new_full")
def new(x: Tensor, size: Sizes, *_: float, dtype: torch.dtype | None = None, **options: object) -> Out:
    """A row-major tensor of a size, by default with the input's dtype."""
    sure(options.get("layout") in (None, torch.strided) and all(length >= 0 for length in size))
    return fresh(size, dtype or x.dtype)


@rule("arange", "arange.start", "arange.start_step")
def arange(*numbers: int, dtype: torch.dtype | None = None, layout: torch.layout | None = None, **_: Any) -> Out:
    """A vector of the integers in a range; no rule for floats."""
    sure(all(type(number) is int for number in numbers) and layout in (None, torch.strided))
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    sure(step and (end - start) * step >= 0)
    return fresh([-((start - end) // step)], dtype or torch.int64)
