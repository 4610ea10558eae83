"""Rules for views: where in the storage they look."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch._ops import OpOverload

from ..strides import contiguous
from .registry import F, Shape, Sizes, axis_of, numel, rule_in, said_by, sure


class View(NamedTuple):
    """A view of an operator's first argument: its shape, strides, and offset from that argument, in elements."""

    shape: Shape
    stride: Shape
    offset: int = 0


ViewResult: TypeAlias = "View | list[View]"

VIEWS: dict[str, Callable[..., ViewResult]] = {}
"""By the operator's name in its schema: "aten::slice.Tensor"."""


def viewed(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewResult | None:
    """Return the view or views that an operator returns of its first argument; None if no rule applies."""
    return said_by(VIEWS.get(func.name()), args, kwargs)


def _view(*names: str) -> Callable[[F], F]:
    return rule_in(VIEWS, *names)


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
