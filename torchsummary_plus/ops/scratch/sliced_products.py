"""The products that bilinear forms consist of, for one slice after the other.

Source: aten/src/ATen/native/Linear.cpp, ``_trilinear`` and ``sumproduct_pair``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...live.versions import since
from .registry import Alloc, Course, Free, Lasting, Result, Step
from .sizes import nbytes

SOURCE = "aten/src/ATen/native/Linear.cpp, _trilinear"


class Products:
    """The course of a chain of products.

    ``summing`` and ``multiplying`` return what kernels allocate besides their results, to sum a tensor over
    an axis and for a batched product of a result and its operands.
    """

    def __init__(
        self,
        summing: Callable[[Tensor, Tensor, int], Course],
        multiplying: Callable[[Tensor, Tensor, Tensor], Course],
    ) -> None:
        self.summing = summing
        self.multiplying = multiplying
        self.steps: list[Step] = [Result(0)]
        self.live: list[int] = []
        self.count = 0

    def of_slice(
        self, a: Any, b: Any, c: Any, in_a: Any, in_b: Any, in_c: Any, summed: Any, unrolled: int = 1
    ) -> Course:
        """Return the course of the first slice, by the operator's arguments; the others repeat it."""
        if a.numel() and b.numel() and c.numel():
            slices = [_slice(tensor, axes, unrolled) for tensor, axes in ((a, in_a), (b, in_b), (c, in_c))]
            early, late = _summed_axes(in_c, summed, unrolled)
            self._pair(self._pair(slices[0], slices[1], early), slices[2], late)
        return tuple(self.steps)

    def _pair(self, left: Tensor, right: Tensor, axes: Collection[int]) -> Tensor:
        """Return the product of two tensors of equal rank, summed over some axes; the caller keeps it."""
        if not axes:
            product = left * right
            self._take(nbytes(product))
            return product
        with self._scope() as retained:
            left, right = (self._summed(*sides, axes) for sides in ((left, right), (right, left)))
            shared, of_left, of_right = _roles(left, right, axes)
            if since("2.9") and of_left and of_right and of_right[-1] < of_left[0]:  # For a contiguous result.
                left, right, of_left, of_right = right, left, of_right, of_left
            ordered = sorted(axes)
            a = self._matrices(left, [shared, of_left, ordered])
            b = self._matrices(right, [shared, ordered, of_right])
            product = torch.bmm(a, b)
            retained.append(self._take(nbytes(product)))
            with self._scope():
                self._follow(self.multiplying(product, a, b))
        sizes = [left.shape[axis] for axis in (*shared, *of_left)]
        sizes += [1] * len(axes) + [right.shape[axis] for axis in of_right]
        order = [*shared, *of_left, *ordered, *of_right]
        return product.view(sizes).permute([order.index(axis) for axis in range(left.dim())])

    def _summed(self, tensor: Tensor, other: Tensor, axes: Collection[int]) -> Tensor:
        """Return a tensor summed over the axes that only it has."""
        for axis in sorted(axes):
            if tensor.shape[axis] > 1 and other.shape[axis] == 1:
                added = tensor.sum(axis, keepdim=True)
                self._take(nbytes(added))
                with self._scope():
                    self._follow(self.summing(added, tensor, axis))
                tensor = added
        return tensor

    def _matrices(self, tensor: Tensor, groups: list[list[int]]) -> Tensor:
        """Return a tensor with its axes in three groups, each joined into one."""
        permuted = tensor.permute([axis for group in groups for axis in group] + _others(tensor, groups))
        shape = [int(torch.Size(tensor.shape[axis] for axis in group).numel()) for group in groups]
        joined = permuted.reshape(shape)
        if joined.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
            self._take(nbytes(joined))
        return joined

    def _take(self, size: int) -> int:
        self.steps.append(Alloc(size))
        self.live.append(self.count)
        self.count += 1
        return self.count - 1

    def _follow(self, course: Course) -> None:
        """Allocate what a kernel allocates."""
        for step in course:
            if isinstance(step, Alloc):
                self._take(step.nbytes)
            elif isinstance(step, Lasting):
                self.steps.append(step)

    @contextmanager
    def _scope(self) -> Iterator[list[int]]:
        """Free what is allocated inside on exit, besides the buffers that the caller adds."""
        before, retained = set(self.live), list[int]()
        yield retained
        ended = [number for number in self.live if number not in before and number not in retained]
        self.steps += map(Free, ended)
        self.live = [number for number in self.live if number not in ended]


def _summed_axes(in_c: Collection[int], summed: Collection[int], unrolled: int) -> tuple[list[int], list[int]]:
    """Return the axes that the first product adds up, which the third tensor lacks, and those of the second."""
    axes = [axis for axis in summed if axis != unrolled]
    return [axis for axis in axes if axis in in_c], [axis for axis in axes if axis not in in_c]


def _slice(tensor: Any, expanded: Collection[int], unrolled: int) -> Tensor:
    """Return the first slice along an axis, on meta, with axes of length 1 inserted."""
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    for axis in sorted(expanded):
        there = there.unsqueeze(axis)
    return there.narrow(unrolled, 0, 1)


def _others(tensor: Tensor, groups: list[list[int]]) -> list[int]:
    """Return the axes in no group, all of length 1."""
    return [axis for axis in range(tensor.dim()) if not any(axis in group for group in groups)]


def _roles(left: Tensor, right: Tensor, axes: Collection[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the axes of the product that both tensors have, that only the left has, and all others."""
    shared: list[int] = []
    of_left: list[int] = []
    of_right: list[int] = []
    for axis in range(left.dim()):
        if axis not in axes:
            has_left, has_right = left.shape[axis] > 1, right.shape[axis] > 1
            (shared if has_left and has_right else of_left if has_left else of_right).append(axis)
    return shared, of_left, of_right
