"""Tensors reduced to shape and strides, and the cost of making them contiguous.

c10/core/MemoryFormat.h and TensorImpl.cpp: contiguity in a memory format, and the format that strides suggest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ..strides import suggests_channels_last


@dataclass(frozen=True, slots=True)
class Strided:
    """A batch of 2-d or 3-d images with channels."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous copy."""
        return prod(self.shape) * self.itemsize

    @property
    def suggests_last(self) -> bool:
        """Whether the strides suggest channels-last; not if both formats fit."""
        return suggests_channels_last(self.shape, self.strides)

    def is_contiguous(self, last: bool = False) -> bool:
        """Whether the tensor is contiguous in channels-last (``last``) or row-major order."""
        expected = 1
        for axis in _order(len(self.shape), last):
            if self.shape[axis] == 1:
                continue
            if self.strides[axis] != expected:
                return False
            expected *= self.shape[axis]
        return True

    def contiguous(self, last: bool = False) -> Strided:
        """Return the tensor itself if contiguous in the format, else its copy."""
        return self if self.is_contiguous(last) else laid_out(self, last)

    def part(self, axis: int, parts: int) -> Strided:
        """Return one of ``parts`` equal parts of an axis, as a view."""
        shape = list(self.shape)
        shape[axis] //= parts
        return Strided(tuple(shape), self.strides, self.itemsize)


def strided(tensor: Any) -> Strided:
    """Return a tensor's shape and strides; a single spatial axis becomes two, the first of length 1 (``view4d``)."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if len(shape) == 3:
        shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
    return Strided(shape, strides, tensor.element_size())


def laid_out(tensor: Strided, last: bool) -> Strided:
    """Return a new contiguous tensor of the same shape."""
    return Strided(tensor.shape, dense_strides(tensor.shape, last), tensor.itemsize)


def dense_strides(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """Return the strides of a new tensor in channels-last (``last``) or row-major order.

    >>> dense_strides((2, 3, 4, 5), False), dense_strides((2, 3, 4, 5), True)
    ((60, 20, 5, 1), (60, 1, 15, 3))
    """
    strides, step = [0] * len(shape), 1
    for axis in _order(len(shape), last):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def copied(before: Strided, after: Strided) -> int:
    """Return the bytes of turning one tensor into the other: 0 if it is the same."""
    return 0 if after == before else after.nbytes


def _order(axes: int, last: bool) -> tuple[int, ...]:
    """Return the axes from the innermost outwards."""
    return (1, *range(axes - 1, 1, -1), 0) if last else tuple(range(axes - 1, -1, -1))
