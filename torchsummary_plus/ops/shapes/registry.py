"""What the rules for operators on fakes are written with: their registry, their one way to give up, and memory layouts.

A rule computes from shapes, strides and dtypes what a meta kernel finds out by running. It gives up by raising
:class:`Unsure` (``sure(condition)``) wherever torch would raise, or would do something that the rule does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = Sequence[int]
Out: TypeAlias = "tuple[Shape, Shape, torch.dtype]"
"""Shape, stride and dtype of a fresh tensor."""
Outs: TypeAlias = "list[Out | int | None]"
"""Several outputs, None for one that is not defined."""
Answer: TypeAlias = "Out | int | Outs"
"""A fresh tensor; the position of an argument that comes back; or a list of these, for a tuple of outputs."""
Rule: TypeAlias = Callable[..., Answer]
R = TypeVar("R", bound=Rule)

RULES: dict[str, Rule] = {}
"""By the operator's name as its schema has it: "aten::add.Tensor"."""

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
NUMBERS = FLOATS | INTEGERS | {torch.bool}
"""The dtypes whose promotion is plain."""
INDICES = frozenset({torch.int32, torch.int64})


class Unsure(Exception):
    """No rule answers: the meta kernel must, and raises what it has to."""


def sure(condition: object) -> None:
    """Raise :class:`Unsure` unless the condition holds."""
    if not condition:
        raise Unsure


def rule(*names: str) -> Callable[[R], R]:
    """Register a function of an operator's arguments as the rule of these aten operators; refuses a second rule."""

    def register(function: R) -> R:
        for name in names:
            key = f"aten::{name}"
            if key in RULES:
                raise ValueError(f"{key} already has a rule")
            RULES[key] = function
        return function

    return register


def axis_of(dim: int, rank: int) -> int:
    """A possibly negative axis as one from 0; an axis of a scalar is 0."""
    rank = max(rank, 1)
    sure(-rank <= dim < rank)
    return dim % rank


def each(values: Sizes, count: int) -> Sizes:
    """One setting for each of ``count`` axes; a single one holds for all."""
    sure(len(values) in (1, count))
    return list(values) * count if len(values) == 1 else values


def numel(shape: Sequence[int]) -> int:
    """The number of elements."""
    count = 1
    for size in shape:
        count *= size
    return count


def contiguous(shape: Sequence[int]) -> Shape:
    """The strides of a fresh tensor in row-major order."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


def channels_last(shape: Shape) -> Shape:
    """The strides of a fresh image or volume whose channels lie innermost."""
    sure(len(shape) in (4, 5) and numel(shape))
    strides = [1] * len(shape)
    step = shape[1]
    for axis in (*range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def is_contiguous(x: Tensor) -> bool:
    """Whether a tensor lies in row-major order, axes of size 1 aside."""
    step = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride())):
        if size != 1:
            if stride != step and numel(x.shape):
                return False
            step *= size
    return True


def is_dense(x: Tensor) -> bool:
    """Whether a tensor's elements fill a block of memory, each once, in whatever order of axes."""
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(x.shape, x.stride()) if size > 1):
        if stride != step:
            return False
        step *= size
    return True


def is_channels_last(x: Tensor) -> bool:
    """Whether torch takes a tensor's strides as a sign that its operators should keep channels innermost."""
    shape, strides = x.shape, x.stride()
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def fresh(shape: Sequence[int], dtype: torch.dtype) -> Out:
    """A fresh tensor in row-major order."""
    return tuple(shape), contiguous(shape), dtype


def in_format_of(x: Tensor, shape: Shape, dtype: torch.dtype) -> Out:
    """A fresh tensor with the channels innermost if those of ``x`` are, else in row-major order."""
    return (shape, channels_last(shape), dtype) if is_channels_last(x) else fresh(shape, dtype)


def densely(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> Shape:
    """Strides of a fresh tensor that lies in memory in the order in which its operands do.

    ``operands`` are their strides in the common shape, 0 where one is broadcast. The same insertion sort, with its
    ambiguous comparisons, as ``TensorIteratorBase::reorder_dimensions``.
    """
    order = list(range(len(shape) - 1, -1, -1))

    def compare(first: int, second: int) -> int:
        for strides in operands:
            a, b = strides[first], strides[second]
            if a and b and (a != b or shape[first] > shape[second]):
                return -1 if a < b else 1
        return 0

    for start in range(1, len(order)):
        moving = start
        for place in range(start - 1, -1, -1):
            comparison = compare(order[place], order[moving])
            if comparison > 0:
                order[place], order[moving] = order[moving], order[place]
                moving = place
            elif comparison < 0:
                break
    strides = [1] * len(shape)
    step = 1
    for axis in order:
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def preserved(x: Tensor) -> Shape:
    """The strides of a fresh tensor like ``x``: the same where ``x`` is dense, else in the same order."""
    return x.stride() if is_dense(x) else densely(x.shape, [x.stride()])


def formatted(x: Tensor, memory_format: Any) -> Shape:
    """The strides of a fresh tensor like ``x`` in a memory format, None meaning that it is preserved."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved(x)
    if memory_format is torch.contiguous_format:
        return contiguous(x.shape)
    sure(x.dim() == (4 if memory_format is torch.channels_last else 5))
    return channels_last(x.shape)
