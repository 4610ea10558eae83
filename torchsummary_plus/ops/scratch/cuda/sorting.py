"""CUDA: sorts, the largest elements, positions that masks become, writing at indices, and CUB's storage below.

Source: aten/src/ATen/native/cuda/Sort.cpp and SortStable.cu; TensorTopK.cu (``mbtopk``), by which several thread blocks
search if slices are long or many, and TensorTopK.cpp. CUB: cub/device/dispatch/dispatch_radix_sort.cuh,
dispatch_scan.cuh, dispatch_select_if.cuh, dispatch_reduce.cuh and agent/single_pass_scan_operators.cuh. Every part of
its storage is rounded up to 256 bytes; 255 more align the whole. The numbers of items per tile are those of the
policies that CUB tunes by compute capability, read off torch's own requests. Nonzero.cu, Indexing.cu
(``index_put_with_sort_kernel``), IndexKernel.cpp (``masked_scatter__cuda``), Embedding.cu, EmbeddingBag.cu and
EmbeddingBackwardKernel.cu; aten/src/ATen/native/IndexingUtils.h (``expandTensors``) and TensorAdvancedIndexing.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ....data.capability import Chip
from ....data.units import MIB, ceil_div, round_up
from ..allocations import INT64, Allocations, buffers, copied, copies, flattened, joined
from ..masks import fills, is_mask, masked_rows, masks_of, written_rows
from ..registry import DOUBT, OLDEST, Alloc, AtMost, Result, Timeline, scratch

SMALL = 4096
"""Longest row that is sorted in place."""


def _ordered(out: Any, known: Timeline = ()) -> AtMost:
    """Return the bound of a sort of several long rows: copies, pairs of rows and elements, and CUB's storage."""
    return AtMost(5 * (out[0].nbytes + out[1].nbytes) + 8 * MIB, known)


@scratch("cuda", "aten::sort", "aten::sort.stable")
def sort(chip: Chip, out: Any, x: Any, *args: Any, **kwargs: Any) -> Timeline | AtMost:
    """The order of a row, with CUB's storage for a long one; several long rows have a bound."""
    dim = kwargs.get("dim", next((a for a in args if isinstance(a, int) and not isinstance(a, bool)), -1))
    if not x.dim() or not x.numel():
        return ()
    length = int(x.shape[dim])
    if length <= SMALL:
        return (Alloc(INT64 * length),)
    if x.numel() > length:
        return _ordered(out)
    steps = Allocations()
    steps.append(copies(x))
    order, storage = steps.buffer(INT64 * length), steps.buffer(radix_sort(chip, length, x.element_size(), INT64))
    steps.free(storage, order)
    return steps.timeline()


SEVERAL = ((20, 20_000), (40, 10_000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""So many slices are searched by several blocks each from this length on; more slices from ``SHORTEST`` on."""
SHORTEST = 400
THREADS, BLOCKS_EACH = 256, 6
"""Threads of a block, and blocks per multiprocessor, of 40 registers a thread."""
FEWEST, MOST = 4, 64
"""Elements of a thread."""
COUNTER = 2
"""Bytes of a count of the elements with one value of a byte."""


@scratch("cuda", "aten::topk")
def topk(
    chip: Chip, out: Any, x: Any, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> Timeline | AtMost:
    """A contiguous copy and the search; the order of more than 4,096 elements of a slice has a bound."""
    if not x.dim() or not x.numel():
        return ()
    timeline = joined(copies(x), search(chip, x.numel(), int(x.shape[dim]), x.element_size()))
    return _ordered(out, timeline) if ordered and k > SMALL else timeline


def search(chip: Chip, count: int, length: int, item: int) -> Timeline:
    """Return the timeline of a search among ``count`` elements in slices of a length; one block each needs none."""
    slices = count // length
    if length < next((least for most, least in SEVERAL if slices <= most), SHORTEST):
        return ()
    each = ceil_div(count, chip.multiprocessors * BLOCKS_EACH * THREADS)
    blocks = slices * ceil_div(length, THREADS * max(FEWEST, min(MOST, each)))
    radix = 8 if item == 8 else 4
    steps = Allocations()
    sizes = (item, 2 * 4, 2 * radix, blocks * DIGITS * COUNTER // slices, DIGITS * 4, blocks * 4 // slices)
    numbers = [steps.buffer(size * slices) for size in (*sizes, sizes[-1])]
    for _ in range(2):
        steps.temporary(Alloc(pass_bytes(chip, blocks, SCAN_BY_KEY)))
    steps.free(*reversed(numbers))
    return steps.timeline()


COUNT_BYTES = 4


def positions(chip: Chip, count: int, copy: int, result: Alloc | Result, has_axes: bool = True) -> Timeline:
    """Return the timeline of ``nonzero()`` of so many elements, whose ``result`` alone outlives it.

    After a contiguous copy of ``copy`` bytes come a count and the positions, each with CUB's storage.
    """
    steps = Allocations()
    copies = steps.append(buffers(copy))
    number = steps.buffer(COUNT_BYTES)
    steps.temporary(Alloc(count_sum(chip, count)))
    steps.append((result,))
    if has_axes:
        steps.temporary(Alloc(pass_bytes(chip, count, SELECT)))
    steps.free(number, *copies)
    return steps.timeline()


def _expanded(chip: Chip, indices: Sequence[Any], rows: int) -> Timeline:
    """Return the timelines of all masks among indices, each of which selects ``rows`` positions."""
    masks = filter(is_mask, indices)
    return joined(*(positions(chip, m.numel(), copied(m), Alloc(INT64 * rows * m.dim())) for m in masks))


scratch("cuda", "aten::nonzero")(
    lambda chip, out, x: positions(chip, x.numel(), copied(x), Result(0), has_axes=x.dim() > 0)
)


@scratch("cuda", "aten::masked_select")
def masked_select(chip: Chip, out: Any, x: Any, mask: Any) -> Timeline:
    """The positions of the mask, broadcast to the input, then the result."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    count = int(prod(shape))
    copy = copied(mask) if mask.shape == shape else count * mask.element_size()
    selected = Alloc(INT64 * out.numel() * max(1, len(shape)))
    return *positions(chip, count, copy, selected), Result(0)


@scratch("cuda", "aten::index.Tensor")
def index(chip: Chip, out: Any, x: Any, indices: Sequence[Any]) -> Timeline:
    """The positions of masks, then the result."""
    if not any(map(is_mask, indices)):
        return ()
    return *_expanded(chip, indices, masked_rows(out, x, indices)), Result(0)


@scratch("cuda", "aten::index_put", "aten::index_put_")
def index_put(
    chip: Chip, out: Any, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Timeline | AtMost:
    """The positions of masks; when accumulating, all linear indices and their order, before, after and in the sort."""
    masked: Timeline = ()
    if any(map(is_mask, indices)):
        if not accumulate and fills(indices, values):
            return ()
        rows = written_rows(x, indices, values)
        if rows is None:
            masks = masks_of(indices)
            ranks = sum(mask.dim() for mask in masks) + 6 * accumulate
            return AtMost(INT64 * ranks * max(mask.numel() for mask in masks))
        masked = _expanded(chip, indices, rows)
    else:
        rows = int(prod(torch.broadcast_shapes(*(index.shape for index in indices if index is not None))))
    return joined(masked, _sorted_writes(chip, x, indices, values, rows) if accumulate else ())


def _sorted_writes(chip: Chip, x: Any, indices: Sequence[Any], values: Any, count: int) -> Timeline:
    """Return a timeline that sorts linear indices, so that equal ones are written one after the other.

    A tensor that is not contiguous is copied; values are expanded to all elements that are written.
    """
    if not count or not x.numel():
        return ()
    axes: list[int] = []  # A mask is of as many as it has.
    axis = 0
    for index in indices:
        following = axis + (index.dim() if is_mask(index) else 1)
        axes += [] if index is None else range(axis, following)
        axis = following
    places = prod(x.shape[axis] for axis in axes)
    written = count * (x.numel() // places)
    expanded = copied(values) if values.numel() == written else written * values.element_size()
    is_moved = False  # Axes that are not adjacent come to the front.
    if axes[-1] - axes[0] >= len(axes):
        order = [axis for axis in (*axes, *(a for a in range(x.dim()) if a not in axes)) if x.shape[axis] > 1]
        is_moved = order != sorted(order)
    steps = Allocations()
    steps.append(copies(x))
    unwrapped = steps.buffer(INT64 * count)
    steps.buffer(INT64 * count)
    steps.free(unwrapped)
    steps.append(buffers(expanded, x.nbytes if is_moved else 0))
    for _ in range(3):
        steps.buffer(INT64 * count)
    steps.buffer(radix_sort(chip, count, INT64, INT64, max(1, (places - 1).bit_length())))
    return steps.timeline()


@scratch("cuda", "aten::masked_scatter", "aten::masked_scatter_")
def masked_scatter(out: Any, x: Any, mask: Any, source: Any) -> Timeline:
    """A running count of the mask's elements, and contiguous copies of mask and source."""
    count = out.numel()
    if not count:
        return ()
    copy = copied(mask) if mask.shape == out.shape else count
    steps = Allocations()
    steps.append((Alloc(INT64 * count), *buffers(copy)))
    steps.temporary(Alloc(scan(count, INT64)))
    steps.append(copies(source))
    return steps.timeline()


# The selected gradients, assumed to be as many as the source's elements. With fewer, there are fewer positions, but
# zeros beside the result: in half precision with three axes, 1/12 of them.
scratch("cuda", "aten::masked_scatter_backward", band=0.95)(
    lambda chip, out, grad, mask, sizes: masked_select(chip, out, grad, mask)
)


# Gradients of embeddings, which sort the indices; bags of them

SORTED_FROM = 3072
"""Most indices that are added without sorting them."""
ROWS_PER_THREAD = 10
COMMON = 30
"""With more indices than this for each row of a small table, sums of parts are added to it atomically."""
SMALL_TABLE = 4
"""Rows of a small table, fewer than this many for each multiprocessor."""
FP32 = 4


@scratch("cuda", "aten::embedding")
def embedding(out: Any, weight: Any, indices: Any, *_: Any) -> Timeline:
    """The indices in a row, which are copied if they are expanded or transposed."""
    return *buffers(flattened(indices)), Result(0)


def rows_backward(out: Any, grad: Any, indices: Any, *_: Any) -> AtMost:
    """A bound for the gradient of bags, and of rows that are scaled by how often they occur."""
    row = 2 * grad.shape[-1] * max(FP32, grad.element_size())
    return AtMost(indices.numel() * (DOUBT * INT64 + row) + grad.nbytes + MIB)


scratch("cuda", "aten::_embedding_bag_backward", since=OLDEST)(rows_backward)


@scratch("cuda", "aten::embedding_dense_backward")
def embedding_backward(
    chip: Chip, out: Any, grad: Any, indices: Any, num_weights: int, padding_idx: int, by_frequency: bool
) -> Timeline | AtMost:
    """Contiguous indices and gradient; more than 3,072 indices are sorted, and rows of the same one added up in fp32.

    They are added in parts of 10. If the kernel adds the parts to the table atomically, it needs each part's row, and a
    table in fp32; otherwise, it stores their sums.
    """
    count, index, width = indices.numel(), indices.element_size(), int(grad.shape[-1])
    if by_frequency:
        return rows_backward(out, grad, indices)
    if count <= SORTED_FROM:
        return *copies(indices, grad), Result(0)
    is_common = count > COMMON * num_weights and num_weights < SMALL_TABLE * chip.multiprocessors
    segments = min(count, num_weights)
    parts = count // ROWS_PER_THREAD + segments
    steps = Allocations()
    steps.append(copies(indices, grad))
    _sorted, _order, places = (steps.buffer(count * index) for _ in range(3))
    storage = steps.buffer(radix_sort(chip, count, index, index, num_weights.bit_length()))
    steps.free(storage, places)
    steps.result(0)
    steps.append(buffers(count * index, INT64))
    keys, storage = steps.buffer(count * index), steps.buffer(pass_bytes(chip, count, UNIQUE_BY_KEY[index]))
    steps.free(storage, keys)
    steps.append(buffers(segments * index, segments * index))
    steps.temporary(Alloc(scan(segments, index)))
    steps.append(buffers(INT64, parts * index))
    if is_common and not torch.are_deterministic_algorithms_enabled():
        steps.append(buffers(parts * index, num_weights * width * FP32 if grad.element_size() < FP32 else 0))
    else:
        steps.buffer(parts * width * max(FP32, grad.element_size()))
    return steps.timeline()


MAX = 2
"""The mode of a bag that keeps the largest elements."""


@scratch("cuda", "aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def bags(
    out: Any, weight: Any, indices: Any, offsets: Any, by_frequency: bool = False, mode: int = 0, *_: Any
) -> Timeline:
    """The bags' sizes, each index's bag, the rows, and the indices of the maxima."""
    greatest = out[0].numel() * indices.element_size() if mode == MAX else 0
    return Result(2, offsets.nbytes), Result(1, indices.nbytes), Result(0), Result(3, greatest)


ALIGNED = 256
SLACK = ALIGNED - 1
DIGITS = 256
"""Buckets of one pass over 8 bits."""
LEAST = 1
"""Bytes requested if no storage is needed."""
SINGLE_TILE, SINGLE_TILE_OF_FOUR = 2304, 4864
"""Items that one thread block sorts without temporary storage; the second with keys and values of 4 bytes."""
SINGLE_SUM = 4096
"""Items that one thread block adds up without temporary storage."""
FULL_SORT = 45_056
"""Bytes of a sort of keys of 1 or 2 bytes besides copies and the blocks' counters, before compute capability 9.0."""
PADDING = 32
"""Tile states ahead of the first tile."""


TILES = {
    (1, 8): (3456, 3456, 3456),
    (2, 8): (5632, 5632, 5632),
    (4, 4): (11_776, 6528, 6528),
    (4, 8): (2816, 3072, 5376),
    (8, 8): (2816, 3840, 4608),
}
"""Items per tile of a sort by the bytes of keys and values (fewer than 8: as 8): before 8.0, 8.x, from 9.0."""


def radix_sort(chip: Chip, count: int, key: int, value: int, bits: int | None = None) -> int:
    """Return the storage of a sort of ``count`` keys of ``key`` bytes, with values of ``value`` bytes.

    One pass, which reads input and writes output, needs no copies.
    """
    both_of_four = key == value == 4
    if count <= (SINGLE_TILE_OF_FOUR if both_of_four else SINGLE_TILE):
        return LEAST
    passes = ceil_div(bits or 8 * key, 8)
    copies = round_up(count * key, ALIGNED) + round_up(count * value, ALIGNED)
    generation = (chip >= (8, 0)) + (chip >= (9, 0))
    if key <= 2 and generation < 2:
        counters = chip.multiprocessors * chip.threads * 10 * key
        return copies + counters + FULL_SORT + SLACK
    tiles = ceil_div(count, TILES.get((key, value), TILES[key, 8])[generation])
    return SLACK + passes * DIGITS * 8 + ALIGNED + tiles * DIGITS * 4 + (copies if passes > 1 else 0)


def _states(count: int, items: int, state: int) -> int:
    """Return the storage of a pass over tiles, with a state for each."""
    return 2 * ALIGNED - 1 + round_up((ceil_div(count, items) + PADDING) * state, ALIGNED)


def scan(count: int, number: int = 4) -> int:
    """Return the storage of a running sum of numbers of so many bytes."""
    return _states(count, *{2: (7680, 16), 8: (896, 16)}.get(number, (1920, 8)))


def scan_of_row(out: Any, x: Any, dim: int) -> int:
    """Return the bytes of CUB's storage, which a scan along one row of numbers needs."""
    whole = x.dim() and x.numel() and x.numel() == x.shape[dim]
    return scan(x.numel(), out.element_size()) if whole else 0


Policy = tuple[tuple[int, int, int], int]
"""Items per tile from compute capability 9.0 on, on 8.0 and on others; the bytes of a tile's state."""
SELECT: Policy = (4224, 2304, 640), 8
"""Finding the places of non-zero elements."""
SCAN_BY_KEY: Policy = (4032, 3840, 2304), 16
"""Running sums of 4-byte numbers, a new one for each key."""
UNIQUE_BY_KEY: dict[int, Policy] = {4: ((7168, 2816, 704), 16), 8: ((4928, 1344, 320), 16)}
"""Finding where runs of equal keys start, by the bytes of a key."""


def pass_bytes(chip: Chip, count: int, policy: Policy) -> int:
    """Return the storage of a pass."""
    (later, ampere, others), state = policy
    return _states(count, later if chip >= (9, 0) else ampere if tuple(chip) == (8, 0) else others, state)


def count_sum(chip: Chip, count: int) -> int:
    """Return the storage of counting non-zero elements: a sum for each of five blocks for each resident block."""
    if count <= SINGLE_SUM:
        return LEAST
    return SLACK + round_up(chip.multiprocessors * (chip.threads // DIGITS) * 5 * 4, ALIGNED)
