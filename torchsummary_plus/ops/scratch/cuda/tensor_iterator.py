"""``TensorIterator`` as arithmetic: how torch orders and merges a reduction's axes before it chooses a kernel.

Source: aten/src/ATen/TensorIterator.cpp, ``reorder_dimensions``, ``coalesce_dimensions``, ``can_use_32bit_indexing``,
``get_dim_to_split`` and ``SplitUntil32Bit``; aten/src/ATen/native/ReduceOpsUtils.h, ``review_reduce_result``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...strides import strides_of_copy

LAST_OFFSET = 2**31 - 1
"""Largest offset within 32-bit indexing."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction's axes, fastest first, with strides in bytes; the output's stride is 0 on reduced axes."""

    shape: tuple[int, ...]
    output: tuple[int, ...]
    input: tuple[int, ...]
    offset: int
    """Offset of the input in its storage, in elements."""

    @property
    def numel(self) -> int:
        """Number of input elements."""
        return prod(self.shape)

    @property
    def num_reduced(self) -> int:
        """Number of reduced axes, which come first."""
        return self.output.count(0)

    @property
    def num_outputs(self) -> int:
        """Number of output elements."""
        return prod(size for size, stride in zip(self.shape, self.output) if stride or size == 1)

    def parts(self) -> Iterator[Reduction]:
        """Yield the parts that fit 32-bit indexing, in the order they are reduced."""
        waiting = [self]
        while waiting:
            part = waiting.pop()
            if part.has_short_offsets:
                yield part
            else:
                waiting.extend(reversed(part._halves()))

    @property
    def has_short_offsets(self) -> bool:
        """Whether all offsets fit 32-bit indexing."""
        reaches = [1 + sum((n - 1) * s for n, s in zip(self.shape, strides)) for strides in (self.output, self.input)]
        return self.numel <= LAST_OFFSET and max(reaches) <= LAST_OFFSET

    def _halves(self) -> tuple[Reduction, Reduction]:
        extents = [
            ((size - 1) * max(self.output[axis], self.input[axis]), axis) for axis, size in enumerate(self.shape)
        ]
        axis = max(extents)[1]
        first = self.shape[axis] // 2
        sizes = (first, self.shape[axis] - first)
        left, right = (replace(self, shape=(*self.shape[:axis], n, *self.shape[axis + 1 :])) for n in sizes)
        return left, right


def reduction(tensor: Any, axes: Collection[int], out_itemsize: int, itemsize: int | None = None) -> Reduction:
    """Return the reduction of a tensor over some axes (none means all) into a contiguous result.

    With an ``itemsize``, a copy in another dtype is reduced.

    >>> import torch
    >>> reduction(torch.empty(6, 5), [0], 4)
    Reduction(shape=(6, 5), output=(0, 4), input=(20, 4), offset=0)
    >>> reduction(torch.empty(6, 5), [], 4).shape
    (30,)
    """
    shape = tuple(tensor.shape)
    reduced = {axis % len(shape) for axis in axes} if axes and shape else set(range(len(shape)))
    strides = tensor.stride() if itemsize is None else strides_of_copy(shape, tensor.stride())
    itemsize = itemsize or tensor.element_size()
    inputs = [stride * itemsize for stride in strides]
    outputs, step = [0] * len(shape), out_itemsize
    for axis in range(len(shape) - 1, -1, -1):
        if axis not in reduced:
            outputs[axis] = step
            step *= shape[axis]
    order = _ordered(shape, outputs, inputs)
    arranged = [[values[axis] for axis in order] for values in (shape, outputs, inputs)]
    sizes, written, read = map(tuple, _joined(*arranged))
    return Reduction(sizes, written, read, tensor.storage_offset())


def _ordered(shape: tuple[int, ...], outputs: list[int], inputs: list[int]) -> list[int]:
    """Order the axes by the output's strides, then the input's; by insertion sort, as not all axes compare."""
    order = list(range(len(shape) - 1, -1, -1))
    for index in range(1, len(order)):
        later = index
        for earlier in range(index - 1, -1, -1):
            compared = _compare(order[earlier], order[later], shape, outputs, inputs)
            if compared > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
            elif compared < 0:
                break
    return order


def _compare(first: int, second: int, shape: tuple[int, ...], outputs: list[int], inputs: list[int]) -> int:
    """Return 1 if the second axis belongs before the first, -1 if after, 0 if undecided."""
    for strides in (outputs, inputs):
        a, b = strides[first], strides[second]
        if strides is outputs and (a == 0) != (b == 0):
            return 1 if b == 0 else -1
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[first] > shape[second]:
            return 1
    return 0


def _joined(shape: list[int], outputs: list[int], inputs: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Merge axes that are contiguous to each other in both tensors."""
    if len(shape) < 2:
        return shape, outputs, inputs
    last = 0
    for axis in range(1, len(shape)):
        inner, outer = shape[last], shape[axis]
        follows = all(inner * strides[last] == strides[axis] for strides in (outputs, inputs))
        if inner == 1 or outer == 1 or follows:
            if inner == 1:
                outputs[last], inputs[last] = outputs[axis], inputs[axis]
            shape[last] *= outer
        else:
            last += 1
            shape[last], outputs[last], inputs[last] = outer, outputs[axis], inputs[axis]
    return shape[: last + 1], outputs[: last + 1], inputs[: last + 1]
