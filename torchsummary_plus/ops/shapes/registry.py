"""Shared by all result rules: their registry, how they decline, and memory layouts.

A rule computes a kernel's result from shapes, strides, dtypes and the device. It declines by raising :class:`Unsure`
(``sure(condition)``) wherever torch would raise or do something the rule does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload

from ...live import compat
from ...live.fakes import CPU

Shape: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = Sequence[int]
Out: TypeAlias = "tuple[Shape, Shape, torch.dtype | None]"
"""Shape, stride and dtype of a new tensor; None if the kernel is to tell the dtype."""
Outs: TypeAlias = "list[Out | int | None]"
"""Several outputs; None is an undefined one."""
Answer: TypeAlias = "Out | int | Outs"
"""A new tensor; the position, among all tensor arguments, of one that is returned; or a list of these, for a tuple."""
F = TypeVar("F", bound=Callable[..., Any])

RULES: dict[str, Callable[..., Answer]] = {}
"""By the operator's name in its schema: "aten::add.Tensor"."""

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INDICES = frozenset({torch.int32, torch.int64})


class Unsure(Exception):
    """No rule applies, so the meta kernel must run; it raises where torch does."""


def sure(condition: object) -> None:
    """Raise :class:`Unsure` unless the condition holds."""
    if not condition:
        raise Unsure


def results_of_two(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the results of the CPU's kernel for tensors with two elements along each axis, in place of any others.

    They have a call's true dtypes; a call that the kernel refuses has no rule.
    """
    try:
        with compat.no_dispatch():
            results = func(*_twos(args), **{name: _twos(value) for name, value in kwargs.items()})
    except Exception:
        raise Unsure from None
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _twos(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.ones((2,) * value.dim(), dtype=value.dtype, device=CPU)
    return [_twos(item) for item in value] if isinstance(value, (list, tuple)) else value


def rule(*names: str) -> Callable[[F], F]:
    """Register a function of the arguments as the rule of these aten operators; a second rule raises ValueError."""

    def register(function: F) -> F:
        for name in names:
            key = f"aten::{name}"
            if key in RULES:
                raise ValueError(f"{key} already has a rule")
            RULES[key] = function
        return function

    return register


def axis_of(dim: int, rank: int) -> int:
    """Return an axis as a number from 0; a scalar's axis is 0."""
    rank = max(rank, 1)
    sure(-rank <= dim < rank)
    return dim % rank


def each(values: Sizes, count: int) -> Sizes:
    """Return one setting per axis; a single one applies to all ``count`` axes."""
    sure(len(values) in (1, count))
    return list(values) * count if len(values) == 1 else values


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new row-major tensor."""
    return strides_in_order(shape, range(len(shape) - 1, -1, -1))


def strides_in_order(shape: Sequence[int], axes: Iterable[int]) -> tuple[int, ...]:
    """Return the strides of a new dense tensor, by its axes from the innermost.

    >>> strides_in_order((2, 3, 4, 5), (1, 3, 2, 0))
    (60, 1, 15, 3)
    """
    strides = [1] * len(shape)
    step = 1
    for axis in axes:
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def channels_last(shape: Shape) -> Shape:
    """Return the strides of a new channels-last image or volume; declines other shapes."""
    sure(len(shape) in (4, 5) and prod(shape))
    return strides_in_order(shape, (1, *range(len(shape) - 1, 1, -1), 0))


def is_dense(x: Tensor) -> bool:
    """Whether a tensor's elements fill a block of memory once each, in any order of axes."""
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(x.shape, x.stride()) if size > 1):
        if stride != step:
            return False
        step *= size
    return True


def is_channels_last(x: Tensor) -> bool:
    """Whether torch reads a tensor's strides as channels-last; not if they fit row-major order as well.

    Source: c10/core/MemoryFormat.h, ``is_channels_last_strides_2d`` and ``_3d``.
    """
    shape, strides = x.shape, x.stride()
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def floats_of(first: Tensor, *others: Tensor | None) -> torch.dtype:
    """Return the one floating-point dtype of all tensors that are given."""
    dtype = first.dtype
    sure(dtype in FLOATS and all(other is None or other.dtype is dtype for other in others))
    return dtype


def fresh(shape: Sequence[int], dtype: torch.dtype | None) -> Out:
    """Return a new row-major tensor."""
    return tuple(shape), contiguous(shape), dtype


def in_format_of(x: Tensor, shape: Shape, dtype: torch.dtype) -> Out:
    """Return a new tensor, channels-last if ``x`` is, else row-major."""
    return (shape, channels_last(shape), dtype) if is_channels_last(x) else fresh(shape, dtype)


def dense_strides(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> Shape:
    """Return the strides of a new dense tensor in the operands' order of axes.

    ``operands`` are their strides in the broadcast shape, 0 where expanded.
    """
    return strides_in_order(shape, order_of_axes(shape, operands))


def order_of_axes(shape: Sequence[int], operands: Sequence[Sequence[int]], reduced: Collection[int] = ()) -> list[int]:
    """Return the axes from the innermost, as ``TensorIterator`` orders them by its operands' strides, 0 where expanded.

    Reduced axes come first. This is its insertion sort, as not all axes compare.

    Source: aten/src/ATen/TensorIterator.cpp, ``reorder_dimensions``.

    >>> order_of_axes((2, 3, 4), [(12, 1, 3)]), order_of_axes((2, 3), [(0, 1), (3, 1)], reduced=[0])
    ([1, 2, 0], [0, 1])
    """

    def compare(first: int, second: int) -> int:
        """Return 1 if the second axis is the inner one, -1 if the first is, 0 if undecided."""
        if (first in reduced) != (second in reduced):
            return 1 if second in reduced else -1
        for strides in operands:
            a, b = strides[first], strides[second]
            if a and b and (a != b or shape[first] > shape[second]):
                return -1 if a < b else 1
        return 0

    order = list(range(len(shape) - 1, -1, -1))
    for start in range(1, len(order)):
        moving = start
        for place in range(start - 1, -1, -1):
            comparison = compare(order[place], order[moving])
            if comparison > 0:
                order[place], order[moving] = order[moving], order[place]
                moving = place
            elif comparison < 0:
                break
    return order


def only_wanted(outs: Sequence[Out | int | None], wanted: Sequence[bool]) -> Outs:
    """Return the outputs that are wanted, None for the others."""
    return [out if is_wanted else None for out, is_wanted in zip(outs, wanted)]


def preserved_strides(x: Tensor) -> Shape:
    """Return the strides of a new tensor like ``x``: the same if ``x`` is dense, else in the same order of axes."""
    return x.stride() if is_dense(x) else dense_strides(x.shape, [x.stride()])


def strides_in_format(x: Tensor, memory_format: Any) -> Shape:
    """Return the strides of a new tensor like ``x`` in a memory format; None preserves the format."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_strides(x)
    if memory_format is torch.contiguous_format:
        return contiguous(x.shape)
    sure(x.dim() == (4 if memory_format is torch.channels_last else 5))
    return channels_last(x.shape)
