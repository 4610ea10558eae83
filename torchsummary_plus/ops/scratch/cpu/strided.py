"""Tensors by shape and strides alone, and the copies that their layouts cost.

c10/core/MemoryFormat.h and TensorImpl.cpp: what is contiguous in a memory format, and which one the strides suggest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class Strided:
    """Images of two or three axes after those of batch and channels."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """The bytes of a copy."""
        return prod(self.shape) * self.itemsize

    @property
    def suggests_last(self) -> bool:
        """Whether the strides say channels-last (``is_channels_last_strides``): not where both layouts would do."""
        if self.strides[1] == 0:
            return False
        least = 0
        for axis in _order(len(self.shape), last=True):
            stride = self.strides[axis]
            if stride < least or (axis == 0 and least == self.strides[1]):
                return False
            least = stride * max(1, self.shape[axis])
        return True

    def is_contiguous(self, last: bool = False) -> bool:
        expected = 1
        for axis in _order(len(self.shape), last):
            if self.shape[axis] == 1:
                continue
            if self.strides[axis] != expected:
                return False
            expected *= self.shape[axis]
        return True

    def contiguous(self, last: bool = False) -> Strided:
        """The tensor itself, or a copy in the layout."""
        return self if self.is_contiguous(last) else laid_out(self, last)

    def part(self, axis: int, parts: int) -> Strided:
        """One of so many equal parts of an axis, a view."""
        shape = list(self.shape)
        shape[axis] //= parts
        return Strided(tuple(shape), self.strides, self.itemsize)


def strided(tensor: Any) -> Strided:
    """A tensor's shape and strides; one axis becomes two, of which the first is 1 (``view4d``)."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if len(shape) == 3:
        shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
    return Strided(shape, strides, tensor.element_size())


def laid_out(tensor: Strided, last: bool) -> Strided:
    """A tensor of the same shape that is new in the layout."""
    return Strided(tensor.shape, dense_strides(tensor.shape, last), tensor.itemsize)


def dense_strides(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """The strides of a new tensor in a layout.

    >>> dense_strides((2, 3, 4, 5), False), dense_strides((2, 3, 4, 5), True)
    ((60, 20, 5, 1), (60, 1, 15, 3))
    """
    strides, step = [0] * len(shape), 1
    for axis in _order(len(shape), last):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def copied(before: Strided, after: Strided) -> int:
    """The bytes that making one of the other took."""
    return 0 if after == before else after.nbytes


def _order(axes: int, last: bool) -> tuple[int, ...]:
    """The axes from the innermost outwards."""
    return (1, *range(axes - 1, 1, -1), 0) if last else tuple(range(axes - 1, -1, -1))
