"""Scratch memory of operators on the CPU that write at indices, count, compare or unpack."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, prod
from typing import Any

import torch

from ...processor import is_half
from ...strides import contiguous, strides_of_copy
from ..registry import ALL_RESULTS, Phase, reserve, scratch
from ..sizes import INT64, NATIVE, copied, elements, flattened, itemsize, nbytes, scalar
from .general import triangle_of
from .pointwise import cast_bytes
from .reductions import is_flat
from .transposing import copied_in_turn, starts_as_copy

INDEXING = f"{NATIVE}TensorAdvancedIndexing.cpp"
SCATTER = f"{NATIVE}cpu/ScatterGatherKernel.cpp, create_acc_buffer"

_AT_INDICES = tuple(
    f"aten::{name}{kind}" for name in ("scatter", "scatter_") for kind in (".src", ".value", ".reduce", ".value_reduce")
)


@scratch("cpu", *_AT_INDICES, source=SCATTER, band=0.0)
@starts_as_copy
def _at_indices(out: Any, x: Any, dim: int, index: Any, *_: Any, **__: Any) -> int:
    """Half precision is accumulated in float32."""
    return _accumulated(out) + _widened(index) if elements(index) else 0


@scratch("cpu", "aten::gather", source=SCATTER, band=0.0)
def _gather(out: Any, x: Any, dim: int, index: Any, **_: Any) -> int:
    """Rows of a table are copied as they are; what is picked one by one passes through float32."""
    return _widened(index) + (0 if not elements(index) or _takes_rows(out, dim, index, x) else _accumulated(out))


@scratch("cpu", "aten::scatter_add", "aten::scatter_add_", source=SCATTER, band=0.0)
@starts_as_copy
def _scatter_add(out: Any, x: Any, dim: int, index: Any, src: Any) -> int:
    """Half precision is summed in float32: in one row for each thread, or in as many elements as the result has."""
    if not elements(index):
        return 0
    return _widened(index) + (_row_sums(out) if _adds_rows(out, dim, index, src) else _accumulated(out))


def _widened(index: Any) -> int:
    """Return the bytes of indices of 32 bits as integers of 64."""
    return INT64 * elements(index) if index.dtype is torch.int32 else 0


def _accumulated(out: Any) -> int:
    return 4 * elements(out) if is_half(out.dtype) else 0


def _row_sums(out: Any) -> int:
    return torch.get_num_threads() * _accumulated(out) // max(1, int(out.shape[0]))


LEAST_ROW = 16
"""Shortest rows that are added one row at a time."""


def _adds_rows(out: Any, dim: int, index: Any, src: Any) -> bool:
    """Whether an index is one number per row, so that whole rows are added (``can_use_expanded_index_path``)."""
    is_long = index.dim() > 0 and elements(index) // int(index.shape[0]) >= LEAST_ROW
    return is_long and _takes_rows(out, dim, index, src)


def _takes_rows(out: Any, dim: int, index: Any, src: Any) -> bool:
    by_row = index.dim() > 0 and index.stride(0) == 1 and not any(index.stride()[1:])
    alike = 0 < index.dim() == src.dim() == out.dim() and index.shape[1:] == src.shape[1:]
    return bool(by_row and alike and dim % out.dim() == 0 and _are_whole(out, src))


def _are_whole(out: Any, src: Any) -> bool:
    return bool(src.is_contiguous() and out.is_contiguous() and out.dtype.is_floating_point)


@scratch("cpu", "aten::index_add", "aten::index_add_", source=f"{INDEXING}, index_add_cpu_out", band=0.0)
@starts_as_copy
def _index_add(out: Any, x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> int:
    """Along the first or the last axis a sum at indices; else slice by slice."""
    axis, copy = dim % max(1, out.dim()), copied(index)
    scatters = axis in (0, out.dim() - 1) and alpha == 1 and index.dtype is torch.int64
    if out.dim() < 2 or not scatters or not elements(source):
        return copy
    by_row = axis == 0 and elements(source) // int(source.shape[0]) >= LEAST_ROW and _are_whole(out, source)
    return copy + (_row_sums(out) if by_row else _accumulated(out))


@scratch("cpu", "aten::scatter_reduce.two", "aten::scatter_reduce_.two", source=f"{SCATTER}; {INDEXING}", band=0.0)
@starts_as_copy
def _scatter_reduce(out: Any, x: Any, dim: int, index: Any, src: Any, reduce: str, **_: Any) -> int:
    """A mean also counts, but not of whole rows: ones for the source, their sums, and a mask of sums below 1."""
    if _adds_rows(out, dim, index, src):
        return _row_sums(out)
    if reduce != "mean":
        return _accumulated(out)
    counts = nbytes(out) + nbytes(src)
    return max(_accumulated(out), counts + max(_accumulated(out), elements(out) + scalar(out)))


@scratch("cpu", "aten::index_reduce", "aten::index_reduce_", source=f"{INDEXING}, index_reduce_func_impl", band=0.0)
@starts_as_copy
def _index_reduce(out: Any, x: Any, dim: int, index: Any, source: Any, reduce: str, **_: Any) -> int:
    """A copy of the index. A mean counts: the counts, with ones for the source or a mask of counts of 0."""
    if reduce != "mean":
        return copied(index)
    counts, ones = _dense(out), _dense(source)
    counted: int = nbytes(ones) + _index_add(counts, counts, dim, index, ones)
    return copied(index) + nbytes(out) + max(counted, elements(out) + scalar(out))


def _dense(x: Any) -> Any:
    """Return a tensor like ``ones_like(x)``, on meta."""
    return torch.empty_strided(x.shape, strides_of_copy(x.shape, x.stride()), dtype=x.dtype, device="meta")


@scratch("cpu", "aten::_chunk_cat", source=f"{NATIVE}TensorShape.cpp, _pad_chunk", band=0.0)
def _chunk_cat(out: Any, tensors: Sequence[Any], dim: int, chunks: int) -> int:
    """Each tensor that has to be padded to whole chunks, or whose chunks are not flat."""
    copies = 0
    for x in tensors:
        axis = dim % x.dim()
        each = ceil(x.shape[axis] / chunks)
        chunk = torch.empty_strided((each, *x.shape[axis + 1 :]), x.stride()[axis:], device="meta")
        if each * chunks != x.shape[axis] or flattened(chunk):
            copies += nbytes(x) // max(1, int(x.shape[axis])) * each * chunks
    return copies


@scratch("cpu", "aten::unfold_backward", source=f"{NATIVE}UnfoldBackward.h, _make_unfold_backward_iter_over_grad_in",
         band=0.0)  # fmt: skip
def _unfolded(out: Any, grad: Any, sizes: Any, dim: int, size: int, step: int) -> int:
    """Where windows overlap, the positions along the axis."""
    return INT64 * int(out.shape[dim]) if out.dim() and step < size else 0


@scratch("cpu", "aten::histc", source=f"{NATIVE}Histogram.cpp and cpu/HistogramKernel.cpp", band=0.0)
def _histogram(out: Any, x: Any, bins: int = 100, low: Any = 0, high: Any = 0) -> int:
    """A flat copy, with the edges of the bins and a histogram per thread; without a range, the extremes."""
    flat = 0 if is_flat(x) else nbytes(x)
    counts, extremes = torch.get_num_threads() * nbytes(out), copied(x) + 2 * itemsize(out)
    return flat + nbytes(out) + itemsize(out) + max(counts, extremes if low == high else 0)


@scratch("cpu", "aten::histogram.bin_ct", "aten::histogram.bins_tensor",
         source=f"{NATIVE}Histogram.cpp and cpu/HistogramKernel.cpp", band=0.0)  # fmt: skip
def _histogram_and_edges(
    out: Any, x: Any, bins: Any = 100, *, weight: Any = None, density: bool = False, **_: Any
) -> int:
    """Flat copies of the elements and their weights; a histogram per thread, before it the extremes; the sum's cast."""
    flat = sum(0 if each is None or is_flat(each) else nbytes(each) for each in (x, weight))
    counts, extremes = torch.get_num_threads() * nbytes(out[0]), 2 * itemsize(x)
    counted = flat + max(counts, 0 if isinstance(bins, torch.Tensor) else extremes)
    return max(counted, cast_bytes(1.0, x.dtype) if density else 0)


@scratch("cpu", "aten::_histogramdd_from_bin_tensors", source=f"{NATIVE}cpu/HistogramKernel.cpp", band=0.0)
def _histogram_of_points(out: Any, x: Any, bins: Any, **_: Any) -> int:
    """Copies of the edges, and a histogram per thread."""
    return sum(map(nbytes, bins)) + torch.get_num_threads() * nbytes(out)


@scratch("cpu", "aten::_histogramdd_from_bin_cts", source=f"{NATIVE}Histogram.cpp", band=0.0)
def _histogram_of_counted_bins(out: Any, x: Any, bins: Any, **_: Any) -> int:
    """The edges and their copies, and a histogram per thread."""
    edges: int = sum(count + 1 for count in bins) * itemsize(x)
    return 2 * edges + torch.get_num_threads() * nbytes(out)


@scratch("cpu", "aten::embedding_renorm", "aten::embedding_renorm_",
         source=f"{NATIVE}Embedding.cpp, embedding_renorm_cpu_", band=0.0)  # fmt: skip
def _rescaled_rows(out: Any, weight: Any, indices: Any, *_: Any) -> int:
    """The number by which a row is multiplied, if its norm is too large; else only the norm."""
    return copied(indices) + INT64 + itemsize(weight)


@scratch("cpu", "aten::lu_unpack", source=f"{NATIVE}BatchLinearAlgebra.cpp, lu_unpack", band=0.0)
def _unpacked(out: Any, x: Any, pivots: Any, data: bool = True, pivoted: bool = True) -> int:
    """Copies of what the triangles are taken from, then a permutation of the rows, with a copy of its pivots."""
    rows, columns = (int(size) for size in x.shape[-2:])
    least, batch = min(rows, columns), prod(x.shape[:-2])
    shapes = [(*x.shape[:-2], least, columns), (*x.shape[:-2], rows, least)] if data else []
    factors = max((triangle_of(shape, x.stride()) * itemsize(x) for shape in shapes), default=0)
    first, copy = INT64 * rows, copied(pivots)
    permutation = batch * first + max(first, copy) if x.dim() > 2 else first + copy
    return max(factors, permutation if pivoted else 0)


UNIQUE = f"{NATIVE}Unique.cpp, unique_consecutive_cpu_template and _unique_dim_cpu_template"


@reserve("cpu", "aten::unique_consecutive", source=UNIQUE, band=0.0)
def _consecutive(
    out: Any, x: Any, inverse: bool = False, counts: bool = False, dim: Any = None
) -> tuple[int | None, ...]:
    """Results as long as the input, then resized; their storages stay large."""
    if dim is None:
        return nbytes(x), None, INT64 * elements(x) if counts else None
    return None, None, _counts_of_slices(x, dim)


@reserve("cpu", "aten::unique_dim", "aten::unique_dim_consecutive", source=UNIQUE, band=0.0)
def _unlike_along_storages(out: Any, x: Any, dim: int, *_: Any) -> tuple[int | None, ...]:
    return None, None, _counts_of_slices(x, dim)


def _counts_of_slices(x: Any, dim: int) -> int:
    """Return the bytes of one count per slice along an axis, of which a view is returned."""
    return INT64 * int(x.shape[dim])


@scratch("cpu", "aten::unique_consecutive", source=UNIQUE, band=0.0)
def _unlike_neighbours(out: Any, x: Any, inverse: bool = False, counts: bool = False, dim: Any = None) -> int:
    return copied(x) if dim is None else _slices(x, dim)


@scratch("cpu", "aten::unique_dim_consecutive", source=UNIQUE, band=0.0)
def _unlike_neighbours_along(out: Any, x: Any, dim: int, *_: Any) -> int:
    return _slices(x, dim)


@scratch("cpu", "aten::unique_dim", source=UNIQUE, band=0.0)
def _unlike_along(out: Any, x: Any, dim: int, *_: Any) -> int:
    """The slices, then in order."""
    return _slices(x, dim) + nbytes(x)


def _slices(x: Any, dim: int) -> int:
    """Return the bytes of a copy with an axis at the front; 0 if the tensor lies like that."""
    axes = [dim % x.dim(), *(axis for axis in range(x.dim()) if axis != dim % x.dim())]
    shape, strides = ([values[axis] for axis in axes] for values in (x.shape, x.stride()))
    lies_so = all(size == 1 or a == b for size, a, b in zip(shape, strides, contiguous(shape)))
    return 0 if lies_so else nbytes(x)


@scratch("cpu", "aten::randperm", source=f"{NATIVE}TensorFactories.h, check_supported_max_int_with_precision", band=0.0)
def _permutation(out: Any, *_: Any, **kwargs: Any) -> int:
    """The largest number, to see that the dtype can represent it."""
    return itemsize(out)


@scratch("cpu", "aten::_unique2", "aten::_unique", source=f"{NATIVE}Unique.cpp, unique_cpu_sorted_template", band=0.0)
def _unique(
    out: Any, x: Any, is_sorted: bool = True, inverse: bool = False, counts: bool = False
) -> int | tuple[Phase, ...]:
    """The sorted elements and their positions, twice while sorting; then where each value starts, to count it.

    Booleans are counted without sorting.
    """
    if x.dtype is torch.bool or not elements(x):
        return 0
    positions = INT64 * elements(x)
    ordered = copied(x) + nbytes(x) + positions
    starts = INT64 * (elements(out[0]) + 1) if counts else 0
    return Phase(0, ordered + positions), Phase(ALL_RESULTS, ordered + starts)


@scratch("cpu", "aten::repeat_interleave.Tensor", source=f"{NATIVE}Repeat.cpp, repeat_interleave_common", band=0.0)
def _repeated(out: Any, repeats: Any, **_: Any) -> tuple[Phase, ...]:
    """Where each element's repetitions end; before the result, whether each number is at least zero."""
    count, ends = elements(repeats), copied(repeats) + INT64 * elements(repeats)
    checked = max(count + max(scalar(repeats), 1), cast_bytes(repeats, torch.int64))
    return Phase(0, ends + checked), Phase(ALL_RESULTS, ends)


@scratch("cpu", "aten::allclose", source=f"{NATIVE}TensorCompare.cpp, isclose", band=0.0)
def _all_close(out: Any, x: Any, other: Any, *_: Any, **__: Any) -> int:
    """Equal elements, the tolerance, the difference, and whether that is finite; integers, booleans twice, are cast."""
    count = int(prod(torch.broadcast_shapes(x.shape, other.shape)))
    dtype = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.get_default_dtype()
    size = int(dtype.itemsize)
    if dtype.is_complex:
        return count * (1 + 2 * size + size // 2) + elements(other) * size // 2
    cast = 0 if dtype is x.dtype else size * (elements(other) + (elements(x) if x.dtype is torch.bool else 0))
    tolerance = size * elements(other)
    return count + cast + tolerance + max(count * (2 * size + 3), count * (2 * size + 1) + cast_bytes(inf, dtype))


@scratch("cpu", "aten::multilabel_margin_loss_forward", source=f"{NATIVE}LossMultiLabelMargin.cpp", band=0.0)
def _multilabel(out: Any, x: Any, target: Any, reduction: int) -> int:
    """The least and the largest target, one after the other, then contiguous copies."""
    return max(INT64 + copied_in_turn(target)[1], copied_in_turn(x, target)[1])


@scratch("cpu", "aten::multilabel_margin_loss_backward", source=f"{NATIVE}LossMultiLabelMargin.cpp", band=0.0)
def _multilabel_backward(out: Any, grad: Any, x: Any, target: Any, reduction: int, is_target: Any) -> int:
    """As :func:`_multilabel`, then the least and the largest flag of a target beside the copies."""
    copies, most = copied_in_turn(x, target, is_target)
    return max(INT64 + copied_in_turn(target)[1], most, copies + itemsize(is_target))


SEGMENTS = f"{NATIVE}SegmentReduce.cpp"


@scratch("cpu", "aten::segment_reduce", source=SEGMENTS, band=0.0)
def _segments(
    out: Any, x: Any, *_: Any, lengths: Any = None, offsets: Any = None, unsafe: bool = False, **__: Any
) -> tuple[Phase, ...]:
    """Contiguous copies; the checks of lengths: the least one, then whether each row's add up; then the result."""
    copies, most = copied_in_turn(x, lengths, offsets)
    rows = 0 if unsafe or lengths is None else elements(lengths) // max(1, int(lengths.shape[-1]))
    checks = max(itemsize(lengths), rows * (itemsize(lengths) + 1) + INT64) if rows else 0
    return Phase(0, max(most, copies + checks)), Phase(1, copies)


@scratch("cpu", "aten::_segment_reduce_backward", source=SEGMENTS, band=0.0)
def _segments_backward(
    out: Any, grad: Any, result: Any, x: Any, *_: Any, lengths: Any = None, offsets: Any = None, **__: Any
) -> tuple[Phase, ...]:
    """Contiguous copies, then the gradient."""
    copies, most = copied_in_turn(grad, result, x, lengths, offsets)
    return Phase(0, most), Phase(1, copies)


@scratch("cpu", "aten::renorm", "aten::renorm_", source=f"{NATIVE}ReduceOps.cpp, renorm_out", band=0.0)
def _renorm(out: Any, x: Any, p: Any, dim: int, *_: Any) -> int:
    """Norms along an axis, for which half precision is cast to float32, and a factor for each."""
    count = int(x.shape[dim])
    if is_half(x.dtype):
        return 4 * count + max(4 * elements(x), (itemsize(x) + 4) * count)
    return itemsize(x) * count * (2 if x.dtype.is_complex else 1)


@scratch("cpu", "aten::native_dropout_backward", source=f"{NATIVE}Dropout.cpp", band=0.0)
def _dropout_backward(out: Any, grad: Any, mask: Any, scale: float) -> int:
    """The mask in the gradient's dtype, then the masked gradient before it is scaled."""
    return nbytes(out) + cast_bytes(float(scale), out.dtype)
