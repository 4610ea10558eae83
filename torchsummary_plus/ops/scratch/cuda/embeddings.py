"""CUDA: gradients of embeddings and of bags of them, which sort the indices.

Source: aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBag.cu and EmbeddingBackwardKernel.cu.
"""

from __future__ import annotations

from typing import Any

from ....data.capability import Capability
from ..bag_modes import MAX
from ..registry import Alloc, Course, Free, Result, reserve, scratch
from ..sizes import INT64, copied, itemsize, nbytes
from .chips import Chip, chip_of
from .cub import radix_sort

SOURCE = "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu"
BAG = "aten/src/ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu"
SORTED_FROM = 3072
"""Most indices that are added without sorting them."""
ROWS_PER_THREAD = 10
SCAN_BYTES = 1279
"""Bytes of CUB's scans of segments, for up to a few thousand indices."""


@scratch("cuda", "aten::embedding_dense_backward", source=SOURCE, band=0.05, by_capability=True)
def embedding_backward(
    capability: Capability, out: Any, grad: Any, indices: Any, num_weights: int, padding_idx: int,
    scale_by_frequency: bool,
) -> Course:  # fmt: skip
    """A contiguous gradient; more than 3,072 indices are sorted."""
    copies = (Alloc(copied(grad)),) if copied(grad) else ()
    if indices.numel() <= SORTED_FROM and not scale_by_frequency:
        return *copies, Result(0)
    return *copies, *_summed_in_order(chip_of(capability), grad, indices, num_weights, scale_by_frequency, len(copies))


def _summed_in_order(
    chip: Chip, grad: Any, indices: Any, num_weights: int, scale_by_frequency: bool, first: int
) -> Course:
    """Return the course of sorting indices and adding up rows of the same index in fp32, in parts of 10.

    ``first`` is the number of buffers allocated before.
    """
    count: int = indices.numel()
    width: int = grad.shape[-1]
    each = Alloc(count * itemsize(indices))
    segments = min(count, num_weights)
    parts = count // ROWS_PER_THREAD + segments
    few = Alloc(segments * itemsize(indices))
    sort = Alloc(radix_sort(chip, count, itemsize(indices), itemsize(indices), num_weights.bit_length()))
    found, scan = Alloc(INT64), Alloc(SCAN_BYTES)
    return (
        *(each, each, each, sort, Free(first + 3), Free(first + 2)),
        *((each,) if scale_by_frequency else ()),
        *(Result(0), each, found),
        *_briefly(first + 6 + scale_by_frequency, each, scan),
        *(few, few),
        *_briefly(first + 10 + scale_by_frequency, scan),
        *(found, Alloc(parts * itemsize(indices)), Alloc(parts * width * max(4, itemsize(grad)))),
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


@scratch("cuda", "aten::_embedding_bag_backward", source=BAG, band=0.05, by_capability=True)
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
