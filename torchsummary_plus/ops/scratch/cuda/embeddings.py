"""CUDA: gradients of embeddings and of bags of them, which sort the indices.

Source: aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBag.cu and EmbeddingBackwardKernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch

from ...backends import MAX
from ..registry import DOUBT, AtMost, Course, Result, reserve, scratch
from ..sizes import INT64, flattened, itemsize, nbytes
from .allocations import Allocations, buffers, copies, joined
from .chips import Chip
from .sorting import long_scan, radix_sort, scan, unique_by_key

SOURCE = "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu"
BAG = "aten/src/ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu"
SORTED_FROM = 3072
"""Most indices that are added without sorting them."""
ROWS_PER_THREAD = 10
COMMON = 30
"""With more indices than this for each row of a small table, sums of parts are added to it atomically."""
SMALL_TABLE = 4
"""Rows of a small table, fewer than this many for each multiprocessor."""
FP32 = 4
SCAN_BYTES = 1279
"""Bytes of CUB's scans of counts by index, for up to a few thousand indices."""


@scratch("cuda", "aten::embedding", source="aten/src/ATen/native/Embedding.cpp")
def embedding(out: Any, weight: Any, indices: Any, *_: Any) -> Course:
    """The indices in a row, which are copied if they are expanded or transposed."""
    return *buffers(flattened(indices)), Result(0)


@scratch("cuda", "aten::embedding_dense_backward", source=SOURCE)
def embedding_backward(
    chip: Chip, out: Any, grad: Any, indices: Any, num_weights: int, padding_idx: int,
    scale_by_frequency: bool,
) -> Course:  # fmt: skip
    """Contiguous indices and gradient; more than 3,072 indices are sorted."""
    if indices.numel() <= SORTED_FROM and not scale_by_frequency:
        return *copies(indices, grad), Result(0)
    adds = _adds_atomically(chip, indices.numel(), num_weights)
    return joined(copies(indices, grad), _summed_in_order(chip, grad, indices, num_weights, scale_by_frequency, adds))


def _adds_atomically(chip: Chip, count: int, num_weights: int) -> bool:
    """Whether parts of a small table's rows are added atomically, because each row is looked up often."""
    is_common = count > COMMON * num_weights and num_weights < SMALL_TABLE * chip.multiprocessors
    return is_common and not torch.are_deterministic_algorithms_enabled()


def _summed_in_order(
    chip: Chip, grad: Any, indices: Any, num_weights: int, scale_by_frequency: bool, adds: bool = False
) -> Course:
    """Return the course of sorting indices and adding up rows of the same index in fp32, in parts of 10.

    If the kernel ``adds`` the parts to the table atomically, it needs each part's row, and a table in fp32; otherwise,
    it stores their sums.
    """
    count, index, width = indices.numel(), itemsize(indices), int(grad.shape[-1])
    segments = min(count, num_weights)
    parts = count // ROWS_PER_THREAD + segments
    steps = Allocations()
    _sorted, _order, places = (steps.buffer(count * index) for _ in range(3))
    storage = steps.buffer(radix_sort(chip, count, index, index, num_weights.bit_length()))
    steps.free(storage, places)
    if scale_by_frequency:
        steps.buffer(count * index)
        steps.temporary(SCAN_BYTES)
        steps.temporary(SCAN_BYTES)
    steps.result(0)
    steps.buffer(count * index)
    steps.buffer(INT64)
    keys, storage = steps.buffer(count * index), steps.buffer(unique_by_key(chip, count, index))
    steps.free(storage, keys)
    steps.buffer(segments * index)
    steps.buffer(segments * index)
    steps.temporary(long_scan(segments) if index == INT64 else scan(segments))
    steps.buffer(INT64)
    steps.buffer(parts * index)
    if not adds:
        steps.buffer(parts * width * max(FP32, itemsize(grad)))
        return steps.course()
    steps.buffer(parts * index)
    if itemsize(grad) < FP32:
        steps.buffer(num_weights * width * FP32)
    return steps.course()


@reserve("cuda", "aten::_embedding_bag", "aten::_embedding_bag_forward_only", source=BAG)
def bag_results(
    out: Any, weight: Any, indices: Any, offsets: Any, by_frequency: bool = False, mode: int = 0, *_: Any
) -> tuple[int | None, ...]:
    """Return the bytes of the rows, each index's bag, the bags' sizes, and the indices of the maxima."""
    greatest = out[0].numel() * itemsize(indices) if mode == MAX else 0
    return None, nbytes(indices), nbytes(offsets), greatest


@scratch("cuda", "aten::_embedding_bag", "aten::_embedding_bag_forward_only", source=BAG)
def bag(out: Any, *_: Any) -> Course:
    """The sizes of the bags come first, the rows third."""
    return Result(2), Result(1), Result(0), Result(3)


@scratch("cuda", "aten::_embedding_bag_backward", source=BAG)
def bag_backward(
    chip: Chip, out: Any, grad: Any, indices: Any, offsets: Any, places: Any, sizes: Any, greatest: Any,
    rows: int, by_frequency: bool, mode: int, sparse: bool, weights: Any, padding: int = -1,
) -> Course | AtMost:  # fmt: skip
    """A contiguous gradient, then the rows summed in order; maxima are added at once; a sparse one has only a bound."""
    if sparse:
        return AtMost(DOUBT * (nbytes(grad) + nbytes(indices)))
    if mode == MAX or not indices.numel():
        return *copies(grad), Result(0)
    return joined(copies(grad), _summed_in_order(chip, grad, indices, rows, by_frequency))
