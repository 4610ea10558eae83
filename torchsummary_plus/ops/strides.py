"""Strides of new tensors, and the layouts that strides suggest; without torch, for the process that queries cuDNN."""

from __future__ import annotations

from collections.abc import Sequence


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


def strides_of_copy(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the strides of a copy that keeps the layout: of a dense tensor its own, else dense in the same axis order.

    >>> strides_of_copy((6, 8), (1, 6)), strides_of_copy((6, 8), (16, 2))
    ([1, 6], [8, 1])
    """
    copy, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis)):
        copy[axis] = step
        step *= max(1, shape[axis])
    return copy
