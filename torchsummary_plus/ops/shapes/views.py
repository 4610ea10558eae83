"""Rules for views, by where in the storage they look, and for operators that join, select, move, copy and create."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..strides import contiguous
from .pointwise import broadcast, promoted
from .registry import (
    FLOATS,
    INDICES,
    Out,
    Shape,
    Sizes,
    axis_of,
    channels_last,
    dense_strides,
    fresh,
    in_format_of,
    is_channels_last,
    is_contiguous,
    numel,
    rule,
    rule_in,
    said_in,
    strides_in_format,
    sure,
)


class View(NamedTuple):
    """A view of an operator's first argument: its shape, strides, and offset from that argument, in elements."""

    shape: Shape
    stride: Shape
    offset: int = 0


ViewResult: TypeAlias = "View | list[View]"

VIEWS: dict[str, Callable[..., ViewResult]] = {}
"""By the operator's name in its schema: "aten::slice.Tensor"."""


viewed = partial(said_in, VIEWS)
"""Return the view or views that an operator returns of its first argument; None if no rule applies."""
_view = partial(rule_in, VIEWS)


def _replaced(sizes: Sizes, axis: int, *new: int) -> Shape:
    return (*sizes[:axis], *new, *sizes[axis + 1 :])


@_view("view", "_unsafe_view")
def reshaped(x: Tensor, size: Sizes) -> View:
    """The same elements in another shape, in which one length may be -1."""
    shape = list(size)
    if -1 in shape:
        known = numel([length for length in shape if length != -1])
        sure(known and shape.count(-1) == 1 and numel(x.shape) % known == 0)
        shape[shape.index(-1)] = numel(x.shape) // known
    sure(min(shape, default=0) >= 0 and numel(shape) == numel(x.shape))
    return View(tuple(shape), _strides_of_view(x, shape))


def _strides_of_view(x: Tensor, shape: Sizes) -> Shape:
    """Return strides that read the same elements in another shape (``computeStride`` in ``ATen/TensorUtils.cpp``).

    Axes adjacent in memory are merged; each merged chunk must hold whole axes of the new shape.
    """
    sizes, steps = x.shape, x.stride()
    if not numel(sizes) or not sizes:
        return x.stride() if tuple(shape) == sizes else contiguous(shape)
    strides = [0] * len(shape)
    place, step, have, want = len(shape) - 1, steps[-1], 1, 1
    for axis in range(len(sizes) - 1, -1, -1):
        want *= sizes[axis]
        if axis and (sizes[axis - 1] == 1 or steps[axis - 1] == want * step):
            continue
        while place >= 0 and (have < want or shape[place] == 1):
            strides[place] = have * step
            have *= shape[place]
            place -= 1
        sure(have == want)
        step, have, want = steps[axis - 1], 1, 1
    sure(place == -1)
    return tuple(strides)


@_view("alias", "detach")
def same(x: Tensor) -> View:
    """The tensor itself."""
    return View(x.shape, x.stride())


@_view("permute")
def permuted(x: Tensor, dims: Sizes) -> View:
    """The axes in another order."""
    axes = [axis_of(dim, x.dim()) for dim in dims]
    sure(sorted(axes) == list(range(x.dim())))
    return View(tuple(x.shape[axis] for axis in axes), tuple(x.stride()[axis] for axis in axes))


@_view("transpose.int")
def transposed(x: Tensor, first: int, second: int) -> View:
    """Two axes exchanged."""
    axes = list(range(x.dim()))
    a, b = axis_of(first, x.dim()), axis_of(second, x.dim())
    if axes:
        axes[a], axes[b] = b, a
    return permuted(x, axes)


@_view("t")
def matrix_transposed(x: Tensor) -> View:
    """A matrix transposed; a vector or scalar unchanged."""
    sure(x.dim() <= 2)
    return permuted(x, range(x.dim() - 1, -1, -1))


@_view("expand")
def expanded(x: Tensor, size: Sizes, *, implicit: bool = False) -> View:
    """Axes of length 1 expanded with stride 0, and new axes in front."""
    missing = len(size) - x.dim()
    sure(missing >= 0)
    shape, strides = list(size), [0] * len(size)
    for axis, (length, step) in enumerate(zip(x.shape, x.stride()), missing):
        shape[axis] = length if size[axis] == -1 else size[axis]
        sure(length in (1, shape[axis]))
        strides[axis] = step if length == shape[axis] else 0
    for axis in range(missing - 1, -1, -1):
        strides[axis] = 0 if shape[axis] != 1 or axis + 1 == len(shape) else shape[axis + 1] * strides[axis + 1]
    sure(min(shape, default=0) >= 0)
    return View(tuple(shape), tuple(strides))


@_view("slice.Tensor")
def sliced(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> View:
    """A range of one axis, with a positive step."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and step > 0)
    begin, stop, _ = slice(start, end).indices(x.shape[axis])
    length, stride = max(stop - begin + step - 1, 0) // step, x.stride()[axis]
    return View(_replaced(x.shape, axis, length), _replaced(x.stride(), axis, stride * step), begin * stride)


@_view("select.int")
def selected(x: Tensor, dim: int, index: int) -> View:
    """One index of an axis, which is removed."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and -x.shape[axis] <= index < x.shape[axis])
    place = index % x.shape[axis]
    return View(_replaced(x.shape, axis), _replaced(x.stride(), axis), place * x.stride()[axis])


@_view("unsqueeze")
def unsqueezed(x: Tensor, dim: int) -> View:
    """A new axis of length 1."""
    axis = axis_of(dim, x.dim() + 1)
    step = x.shape[axis] * x.stride()[axis] if axis < x.dim() else 1
    return View((*x.shape[:axis], 1, *x.shape[axis:]), (*x.stride()[:axis], step, *x.stride()[axis:]))


@_view("squeeze", "squeeze.dim", "squeeze.dims")
def squeezed(x: Tensor, dims: int | Sizes | None = None) -> View:
    """Axes of length 1 removed: all, or the given ones."""
    chosen = range(x.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    axes = {axis_of(dim, x.dim()) for dim in chosen}
    axes_left = [axis for axis, size in enumerate(x.shape) if axis not in axes or size != 1]
    return View(tuple(x.shape[axis] for axis in axes_left), tuple(x.stride()[axis] for axis in axes_left))


@_view("split.Tensor", "unsafe_split.Tensor")
def split(x: Tensor, size: int, dim: int = 0) -> list[View]:
    """Parts of equal size along an axis; the last may be shorter."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and size > 0 and x.shape[axis])
    return [sliced(x, axis, begin, begin + size) for begin in range(0, x.shape[axis], size)]


@_view("split_with_sizes", "unsafe_split_with_sizes")
def split_in(x: Tensor, sizes: Sizes, dim: int = 0) -> list[View]:
    """Parts of given sizes along an axis."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and min(sizes, default=0) >= 0 and sum(sizes) == x.shape[axis])
    return [sliced(x, axis, end - size, end) for size, end in zip(sizes, accumulate(sizes))]


@_view("unbind.int")
def unbound(x: Tensor, dim: int = 0) -> list[View]:
    """Every index of an axis, which is removed."""
    axis = axis_of(dim, x.dim())
    sure(x.dim())
    return [selected(x, axis, index) for index in range(x.shape[axis])]


# Joining and picking


@rule("cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Out:
    """No rule for torch's legacy case, which skips empty vectors among tensors of higher rank."""
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
    """Tensors of one shape along a new axis."""
    sure(tensors and all(t.shape == tensors[0].shape for t in tensors))
    shape = tensors[0].shape
    axis = axis_of(dim, len(shape) + 1)
    sure(len(shape) not in (3, 4) or all(map(is_contiguous, tensors)))
    return fresh((*shape[:axis], len(tensors), *shape[axis:]), promoted(tensors))


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
    sure(tensors and len(indices) <= x.dim() and numel(x.shape))
    sure(all(index.dtype in INDICES and index.stride() == contiguous(index.shape) for index in tensors))
    picked = broadcast([index.shape for index in tensors])
    sure(picked)
    first = axes[0] if axes[-1] - axes[0] < len(axes) else 0
    shape, strides = [x.shape[axis] for axis in others], [x.stride()[axis] for axis in others]
    shape[first:first], strides[first:first] = picked, [0] * len(picked)
    sure(numel(shape))
    return tuple(shape), dense_strides(shape, [strides]), x.dtype


# Moving


@rule("roll")
def roll(x: Tensor, shifts: Sizes, dims: Sizes = ()) -> Out:
    """Row-major; on the CPU two parts concatenated, axis by axis, in a channels-last format that both have."""
    sure(x.dim() and numel(x.shape) and len(shifts) == (len(dims) or 1))
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


@rule("tril", "triu")
def triangular(x: Tensor, diagonal: int = 0) -> Out:
    """A row-major tensor like the input, which is a matrix or a batch of matrices."""
    sure(x.dim() >= 2)
    return fresh(x.shape, x.dtype)


# Copies and factories


@rule("clone")
def clone(x: Tensor, *, memory_format: torch.memory_format | None = None) -> Out:
    """A tensor like the input, in the memory format."""
    return x.shape, strides_in_format(x, memory_format), x.dtype


@rule("_to_copy", "empty_like", "zeros_like", "ones_like", "full_like")
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
def arange(*numbers: int, dtype: torch.dtype | None = None, **options: Any) -> Out:
    """A vector of the integers in a range; no rule for floats."""
    sure(all(type(number) is int for number in numbers))
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    sure(step and (end - start) * step >= 0)
    sure(options.get("layout") in (None, torch.strided))
    return fresh([-((start - end) // step)], dtype or torch.int64)
