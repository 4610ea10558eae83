"""Tensors reduced to shape and strides, and the cost of making them contiguous.

c10/core/MemoryFormat.h and TensorImpl.cpp: contiguity in a memory format, and the format that strides suggest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ..strides import channels_last, contiguous, suggests_channels_last


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
        dense = (channels_last if last else contiguous)(self.shape)
        return all(size == 1 or a == b for size, a, b in zip(self.shape, self.strides, dense))

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
    return Strided(tensor.shape, (channels_last if last else contiguous)(tensor.shape), tensor.itemsize)


def copied(before: Strided, after: Strided) -> int:
    """Return the bytes of turning one tensor into the other: 0 if it is the same."""
    return 0 if after == before else after.nbytes
