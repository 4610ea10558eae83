"""CUDA: gradients of embeddings and of bags of them, which sort the indices.

Source: aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBag.cu and EmbeddingBackwardKernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ..bag_modes import MAX
from ..registry import Alloc, Course, Free, Result, reserve, scratch
from ..sizes import INT64, copied, itemsize, nbytes
from .chips import Chip, chip_of
from .cub import long_scan, radix_sort, unique, unique_by_key
from .cub import scan as running_sum
from .sorting import SMALL as IN_PLACE

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


@scratch("cuda", "aten::embedding_dense_backward", source=SOURCE, band=0.0, by_capability=True)
def embedding_backward(
    capability: Capability, out: Any, grad: Any, indices: Any, num_weights: int, padding_idx: int,
    scale_by_frequency: bool,
) -> Course:  # fmt: skip
    """A contiguous gradient; more than 3,072 indices are sorted."""
    copies = (Alloc(copied(grad)),) if copied(grad) else ()
    if indices.numel() <= SORTED_FROM and not scale_by_frequency:
        return *copies, Result(0)
    chip = chip_of(capability)
    adds = _adds_atomically(chip, indices.numel(), num_weights)
    return *copies, *_summed_in_order(chip, grad, indices, num_weights, scale_by_frequency, len(copies), adds)


def _adds_atomically(chip: Chip, count: int, num_weights: int) -> bool:
    is_common = count > COMMON * num_weights and num_weights < SMALL_TABLE * chip.multiprocessors
    return is_common and not torch.are_deterministic_algorithms_enabled()


def _summed_in_order(
    chip: Chip, grad: Any, indices: Any, num_weights: int, scale_by_frequency: bool, first: int, adds: bool = False
) -> Course:
    """Return the course of sorting indices and adding up rows of the same index in fp32, in parts of 10.

    If the kernel ``adds`` the parts to the table atomically, it needs each part's row, and a table in fp32; otherwise,
    it stores their sums. ``first`` is the number of buffers allocated before.
    """
    count, index = indices.numel(), itemsize(indices)
    width: int = grad.shape[-1]
    each = Alloc(count * index)
    segments = min(count, num_weights)
    parts = count // ROWS_PER_THREAD + segments
    part = Alloc(parts * index)
    if adds:
        sums: Course = (part, *((Alloc(num_weights * width * FP32),) if itemsize(grad) < FP32 else ()))
    else:
        sums = (Alloc(parts * width * max(FP32, itemsize(grad))),)
    few = Alloc(segments * index)
    sort = Alloc(radix_sort(chip, count, index, index, num_weights.bit_length()))
    found, scan = Alloc(INT64), Alloc(SCAN_BYTES)
    summed = Alloc(long_scan(segments) if index == INT64 else running_sum(segments))
    counts: Course = (each, *_briefly(first + 5, scan), *_briefly(first + 6, scan)) if scale_by_frequency else ()
    after = first + 4 + sum(isinstance(step, Alloc) for step in counts)
    return (
        *(each, each, each, sort, Free(first + 3), Free(first + 2)),
        *counts,
        *(Result(0), each, found),
        *_briefly(after + 2, each, Alloc(unique_by_key(chip, count, index))),
        *(few, few),
        *_briefly(after + 6, summed),
        *(found, part, *sums),
    )


def _briefly(first: int, *buffers: Alloc) -> Course:
    """Return buffers that are freed immediately, numbered from ``first``."""
    return (*buffers, *(Free(first + place) for place in reversed(range(len(buffers)))))


@reserve("cuda", "aten::_embedding_bag", "aten::_embedding_bag_forward_only", source=BAG, band=0.0)
def bag_results(
    out: Any, weight: Any, indices: Any, offsets: Any, by_frequency: bool = False, mode: int = 0, *_: Any
) -> tuple[int | None, ...]:
    """Return the bytes of the rows, each index's bag, the bags' sizes, and the indices of the maxima."""
    greatest = out[0].numel() * itemsize(indices) if mode == MAX else 0
    return None, nbytes(indices), nbytes(offsets), greatest


@scratch("cuda", "aten::_embedding_bag", "aten::_embedding_bag_forward_only", source=BAG, band=0.0)
def bag(out: Any, *_: Any) -> Course:
    """The sizes of the bags come first, the rows third."""
    return Result(2), Result(1), Result(0), Result(3)


@scratch("cuda", "aten::_embedding_bag_backward", source=BAG, band=0.0, by_capability=True)
def bag_backward(
    capability: Capability, out: Any, grad: Any, indices: Any, offsets: Any, places: Any, sizes: Any, greatest: Any,
    rows: int, by_frequency: bool, mode: int, sparse: bool, weights: Any, padding: int = -1,
) -> Course | None:  # fmt: skip
    """A contiguous gradient, then the rows summed in order; maxima are added at once."""
    if sparse:
        return None
    copies = (Alloc(copied(grad)),) if copied(grad) else ()
    if mode == MAX or not indices.numel():
        return *copies, Result(0)
    return *copies, *_summed_in_order(chip_of(capability), grad, indices, rows, by_frequency, len(copies))


@scratch("cuda", "aten::embedding_renorm_", source=SOURCE, band=0.0, by_capability=True)
def embedding_renorm(capability: Capability, out: Any, weight: Any, indices: Any, *_: Any) -> Course:
    """The indices in a row, sorted with their order, and those that differ from the one before."""
    count, index = indices.numel(), itemsize(indices)
    if not count:
        return ()
    chip, each, order = chip_of(capability), Alloc(count * index), Alloc(INT64 * count)
    storage = (Alloc(radix_sort(chip, count, index, INT64)), Free(4)) if count > IN_PLACE else ()
    chosen = Alloc(INT64), Alloc(unique(chip, count, index))
    return each, each, order, order, *storage, Free(3), Free(2), each, *chosen
