"""CUDA: the most frequent numbers of slices.

Source: aten/src/ATen/native/cuda/TensorModeKernel.cpp and .cu.
"""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ....data.rounding import MIN_BLOCK, round_up
from ...processor import is_half
from ...strides import contiguous
from ..registry import ALL_RESULTS, Alloc, AtMost, Course, Free, Phase, scratch
from ..sizes import INT64, itemsize, nbytes
from .allocations import buffers, results
from .chips import chip_of
from .cub import largest_find, thrust_sort

SOURCE = "aten/src/ATen/native/cuda/TensorModeKernel.cpp"
FUSED = 2048
"""The longest slice whose mode a single kernel finds."""


@scratch("cuda", "aten::mode", source=SOURCE, band=0.0, by_capability=True)
def mode(capability: Capability, out: Any, x: Any, dim: int = -1, *_: Any, **__: Any) -> Course | AtMost:
    """A contiguous copy with the axis last; long slices are always copied, and sorted by Thrust one after another.

    A long slice's order is kept, then its different numbers and their counts, while Thrust searches it. Those depend
    on values, but only for shorter slices or few registers do they take more than the sort.
    """
    length = x.shape[dim] if x.dim() else 1
    if length <= FUSED:
        return *results(out), *buffers(0 if length == 1 or _is_along(x, dim) else nbytes(x))
    chip, copy, order = chip_of(capability), nbytes(x), INT64 * length
    if x.dtype is torch.bool:
        return AtMost(round_up(largest_find(chip), MIN_BLOCK), (Phase(ALL_RESULTS, copy),))
    sort = thrust_sort(chip, length, itemsize(x), INT64, is_half(x.dtype))
    counted = (itemsize(x) * length, order, largest_find(chip))
    more = sum(round_up(size, MIN_BLOCK) for size in counted) - round_up(sort, MIN_BLOCK)
    if more > 0:
        return AtMost(more, (Phase(ALL_RESULTS, sort, blocks=(("copy", copy), ("order", order))),))
    return *results(out), Alloc(copy), Alloc(order), Alloc(sort), Free(2)


def _is_along(x: Any, dim: int) -> bool:
    """Whether a tensor is contiguous once an axis and the last one are exchanged."""
    order = list(range(x.dim()))
    order[dim], order[-1] = order[-1], order[dim]
    shape, strides = ([sizes[axis] for axis in order] for sizes in (x.shape, x.stride()))
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, contiguous(shape)))
