"""Strides of new tensors, and the layouts that strides suggest."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new row-major tensor.

    >>> contiguous((2, 3, 4, 5))
    (60, 20, 5, 1)
    """
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new channels-last image or volume.

    >>> channels_last((2, 3, 4, 5))
    (60, 1, 15, 3)
    """
    strides = [1] * len(shape)
    step = max(shape[1], 1)
    for axis in (*range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def suggests_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides suggest channels-last; not if they fit row-major order as well.

    Source: c10/core/MemoryFormat.h, ``is_channels_last_strides_2d`` and ``_3d``.
    """
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


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
