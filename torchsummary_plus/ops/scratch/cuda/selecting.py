"""CUDA: positions that masks become, and writing at indices that may repeat.

Source: aten/src/ATen/native/cuda/Nonzero.cu, Indexing.cu (``index_put_with_sort_kernel``), IndexKernel.cpp and
MaskedScatter; aten/src/ATen/native/IndexingUtils.h (``expandTensors``) and TensorAdvancedIndexing.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..masks import fills, is_mask, mask_axes, masked_rows, masks_of, most_rows, written_rows
from ..registry import Alloc, AtMost, Course, Free, Result, scratch
from ..sizes import INT64, copied, elements, itemsize, nbytes
from .allocations import Allocations, buffers, copies, joined
from .chips import Chip
from .sorting import count_sum, long_scan, radix_sort, select

SOURCE = "aten/src/ATen/native/cuda/Nonzero.cu"
INDEXING = "aten/src/ATen/native/cuda/Indexing.cu"
COUNT_BYTES = 4


def positions(chip: Chip, count: int, copy: int, result: Alloc | Result, has_axes: bool = True) -> Course:
    """Return the course of ``nonzero()`` of so many elements: a count, the positions, and CUB's storage for each.

    ``copy`` is the bytes of a contiguous copy, if one is needed. The ``result`` alone outlives the course. A tensor
    without axes has no positions to find.
    """
    steps = Allocations()
    copies = steps.append(buffers(copy))
    number = steps.buffer(COUNT_BYTES)
    steps.temporary(count_sum(chip, count))
    steps.append((result,))
    if has_axes:
        steps.temporary(select(chip, count))
    steps.free(number, *copies)
    return steps.course()


def _expanded(chip: Chip, indices: Sequence[Any], rows: int) -> Course:
    """Return the courses of all masks among indices, each of which selects ``rows`` positions."""
    masks = filter(is_mask, indices)
    return joined(*(positions(chip, elements(m), copied(m), Alloc(INT64 * rows * m.dim())) for m in masks))


@scratch("cuda", "aten::nonzero", source=SOURCE)
def nonzero(chip: Chip, out: Any, x: Any) -> Course:
    """As :func:`positions`."""
    return positions(chip, elements(x), copied(x), Result(0), has_axes=x.dim() > 0)


@scratch("cuda", "aten::masked_select", source=f"{SOURCE}; IndexKernel.cpp, by index()")
def masked_select(chip: Chip, out: Any, x: Any, mask: Any) -> Course:
    """The positions of the mask, broadcast to the input, then the result."""
    return _selected(chip, out, x, mask)


def _selected(chip: Chip, out: Any, x: Any, mask: Any) -> Course:
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    count = int(prod(shape))
    copy = copied(mask) if mask.shape == shape else count * itemsize(mask)
    selected = Alloc(INT64 * elements(out) * max(1, len(shape)))
    return *positions(chip, count, copy, selected), Result(0)


@scratch("cuda", "aten::index.Tensor", source=INDEXING)
def index(chip: Chip, out: Any, x: Any, indices: Sequence[Any]) -> Course:
    """The positions of masks, then the result."""
    if not any(map(is_mask, indices)):
        return ()
    return *_expanded(chip, indices, masked_rows(out, x, indices)), Result(0)


@scratch("cuda", "aten::index_put", "aten::index_put_", source=INDEXING)
def index_put(
    chip: Chip, out: Any, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Course | AtMost:
    """The positions of masks; when accumulating, all linear indices and their order, before, after and in the sort."""
    masked: Course = ()
    if any(map(is_mask, indices)):
        if not accumulate and fills(indices, values):
            return ()
        rows = written_rows(x, indices, values)
        if rows is None:
            ranks = mask_axes(masks_of(indices)) + 6 * accumulate
            return AtMost(INT64 * ranks * most_rows(indices))
        masked = _expanded(chip, indices, rows)
    else:
        rows = int(prod(torch.broadcast_shapes(*(index.shape for index in indices if index is not None))))
    return joined(masked, _sorted_writes(chip, x, indices, values, rows) if accumulate else ())


def _sorted_writes(chip: Chip, x: Any, indices: Sequence[Any], values: Any, count: int) -> Course:
    """Return a course that sorts linear indices, so that equal ones are written one after the other.

    A tensor that is not contiguous is copied, and one whose indexed axes are not adjacent, which it then has in front.
    Values are expanded to all elements that are written.
    """
    if not count or not elements(x):
        return ()
    axes = _indexed_axes(indices)
    places = prod(x.shape[axis] for axis in axes)
    written = count * (elements(x) // places)
    expanded = copied(values) if elements(values) == written else written * itemsize(values)
    steps = Allocations()
    steps.append(copies(x))
    unwrapped = steps.buffer(INT64 * count)
    steps.buffer(INT64 * count)
    steps.free(unwrapped)
    steps.append(buffers(expanded, nbytes(x) if _moves(x, axes) else 0))
    for _ in range(3):
        steps.buffer(INT64 * count)
    steps.buffer(radix_sort(chip, count, INT64, INT64, max(1, (places - 1).bit_length())))
    return steps.course()


def _indexed_axes(indices: Sequence[Any]) -> list[int]:
    """Return the axes that indices are of; a mask is of as many as it has."""
    axes: list[int] = []
    axis = 0
    for index in indices:
        following = axis + (index.dim() if is_mask(index) else 1)
        axes += [] if index is None else range(axis, following)
        axis = following
    return axes


def _moves(x: Any, axes: Sequence[int]) -> bool:
    """Whether elements move when indexed axes that are not adjacent go to the front."""
    if axes[-1] - axes[0] < len(axes):
        return False
    order = [axis for axis in (*axes, *(a for a in range(x.dim()) if a not in axes)) if x.shape[axis] > 1]
    return order != sorted(order)


SCATTER = "aten/src/ATen/native/cuda/IndexKernel.cpp, masked_scatter__cuda; MaskedScatter kernels in IndexKernel.cu"


@scratch("cuda", "aten::masked_scatter", "aten::masked_scatter_", source=SCATTER)
def masked_scatter(out: Any, x: Any, mask: Any, source: Any) -> Course:
    """A running count of the mask's elements, and contiguous copies of mask and source."""
    count = elements(out)
    if not count:
        return ()
    copy = copied(mask) if mask.shape == out.shape else count
    steps = Allocations()
    steps.append((Alloc(INT64 * count), *buffers(copy)))
    steps.temporary(long_scan(count))
    steps.append(copies(source))
    return steps.course()


@scratch("cuda", "aten::masked_scatter_backward", source="aten/src/ATen/native/TensorAdvancedIndexing.cpp", band=0.95)
def masked_scatter_backward(chip: Chip, out: Any, grad: Any, mask: Any, sizes: Sequence[int]) -> Course:
    """The selected gradients, assumed to be as many as the source's elements.

    With fewer, there are fewer positions, but zeros beside the result: in half precision with three axes, 1/12 of them.
    """
    return _selected(chip, out, grad, mask)


REDUCED = "aten/src/ATen/native/TensorAdvancedIndexing.cpp"


@scratch("cuda", "aten::scatter_reduce.two", "aten::scatter_reduce_.two", source=REDUCED)
def scatter_reduce(out: Any, x: Any, dim: int, index: Any, src: Any, reduce: str, **_: Any) -> Course:
    """A mean also counts: the counts, ones for the source, and a mask of counts of 0."""
    return (Alloc(nbytes(out)), Alloc(nbytes(src)), Alloc(elements(out))) if reduce == "mean" else ()


@scratch("cuda", "aten::index_reduce", "aten::index_reduce_", source=REDUCED)
def index_reduce(out: Any, x: Any, dim: int, index: Any, source: Any, reduce: str, **_: Any) -> Course:
    """A mean counts: the counts, with ones for the source or a mask of counts of 0."""
    return (Alloc(nbytes(out)), Alloc(nbytes(source)), Free(1), Alloc(elements(out))) if reduce == "mean" else ()
