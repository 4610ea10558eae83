"""CUDA: sorts, random orders and draws, the largest elements, and the temporary storage of CUB below them.

Source: aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu and Randperm.cu; TensorTopK.cu (``mbtopk``), by which several
thread blocks search if slices are long or many, and TensorTopK.cpp; MultinomialKernel.cu and Distributions.cpp, whose
draws without replacement look for the largest too. CUB: cub/device/dispatch/dispatch_radix_sort.cuh, dispatch_scan.cuh,
dispatch_select_if.cuh, dispatch_reduce.cuh and agent/single_pass_scan_operators.cuh. Every part of its storage is
rounded up to 256 bytes; 255 more align the whole. The numbers of items per tile are those of the policies that CUB
tunes by compute capability, read off torch's own requests.
"""

from __future__ import annotations

from math import ceil, log, log2
from typing import Any

from ....data.units import ceil_div, round_up
from ....live.versions import since
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, scratch
from ..sizes import INT64, elements, itemsize, nbytes
from .allocations import Allocations, buffers, copies, joined
from .chips import Chip

SORT = "aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu"
SMALL = 4096
"""Longest row that is sorted in place."""
LARGE, FEW = 1_000_000, 128
"""Rows from this length on are sorted one by one; fewer than 128 shorter ones are sorted as a whole."""


@scratch("cuda", "aten::sort", "aten::sort.stable", source=SORT)
def sort(chip: Chip, out: Any, x: Any, *args: Any, **kwargs: Any) -> Course:
    """The order of one row, or of all elements with CUB's storage; copies of what is not along the axis."""
    dim = kwargs.get("dim", next((a for a in args if isinstance(a, int) and not isinstance(a, bool)), -1))
    if not x.dim() or not elements(x):
        return ()
    steps = Allocations()
    steps.result(0, 1)
    length = int(x.shape[dim])
    if length <= SMALL:
        steps.buffer(INT64 * length)
    else:
        steps.append(sorted_apart(chip, x, dim))
    return steps.course()


def sorted_apart(chip: Chip, x: Any, dim: int) -> Course:
    """Return the course of sorting long rows into results that exist."""
    steps, is_permuted = Allocations(), x.stride(dim) != 1
    if is_permuted or not is_dense(x):
        steps.buffer(nbytes(x))
    if is_permuted and is_dense(x):
        steps.buffer(nbytes(x))
        steps.buffer(INT64 * elements(x))
    steps.append(rows_sorted(chip, elements(x), int(x.shape[dim]), itemsize(x)))
    return steps.course()


def rows_sorted(chip: Chip, count: int, length: int, key: int) -> Course:
    """Return the course of sorting long rows of ``key``-byte elements, ``count`` in all, into results that exist."""
    rows, steps = count // length, Allocations()
    if rows == 1 or length >= LARGE:
        order, storage = steps.buffer(INT64 * length), steps.buffer(radix_sort(chip, length, key, INT64))
        steps.free(storage, order)
    elif rows >= FEW:
        steps.buffer(INT64 * count)
        steps.buffer(round_up(key * count, ALIGNED) + round_up(INT64 * count, ALIGNED) + SLACK)
    else:
        _pairs, _sorted_pairs, keys = (steps.buffer(size * count) for size in (INT64, INT64, key))
        storage = steps.buffer(radix_sort(chip, count, key, INT64))
        steps.free(storage, keys)
        steps.buffer(radix_sort(chip, count, INT64, 0, rows.bit_length(), overwrites=True))
    return steps.course()


@scratch("cuda", "aten::randperm", source="aten/src/ATen/native/cuda/Randperm.cu")
def randperm(chip: Chip, out: Any, n: int, *_: Any, **__: Any) -> Course:
    """The numbers in order, and random keys before and after they are sorted."""
    if n <= 1:
        return ()
    bits = min(64, ceil(log2(n - (6 * n * n + 1) / (12 * log(0.9)))))
    key = 4 if bits <= 32 else 8
    keys = Alloc(key * n)
    numbers = Alloc(itemsize(out) * n)
    return Result(0), numbers, keys, keys, Alloc(radix_sort(chip, n, key, itemsize(out), bits))


SEVERAL = ((20, 20_000), (40, 10_000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""So many slices are searched by several blocks each from this length on; more slices from ``SHORTEST`` on."""
SHORTEST = 400
THREADS, BLOCKS_EACH = 256, 6
"""Threads of a block, and blocks per multiprocessor, of 40 registers a thread."""
FEWEST, MOST = 4, 64
"""Elements of a thread."""
COUNTER = 2
"""Bytes of a count of the elements with one value of a byte."""


@scratch("cuda", "aten::topk", source="aten/src/ATen/native/cuda/TensorTopK.cu")
def topk(chip: Chip, out: Any, x: Any, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Course:
    """A contiguous copy and the search; more than 4,096 elements of a slice are sorted into other tensors."""
    steps, chip = Allocations(), chip
    steps.result(0, 1)
    if not x.dim() or not elements(x):
        return steps.course()
    steps.append(copies(x))
    steps.append(search(chip, elements(x), int(x.shape[dim]), itemsize(x)))
    if ordered and k > SMALL:
        values = out[0]
        steps.buffer(INT64 * elements(values))
        steps.buffer(nbytes(values))
        sorting = sorted_apart(chip, values, dim)
        freed = {step.buffer for step in sorting if isinstance(step, Free)}
        appended = steps.append(sorting)
        steps.free(*(number for place, number in enumerate(appended) if place not in freed))
        steps.temporary(INT64 * elements(values))
    return steps.course()


def search(chip: Chip, count: int, length: int, item: int) -> Course:
    """Return the course of a search among ``count`` elements in slices of a length; one block each needs no buffers.

    >>> search(Chip((8, 0)), 8 * 10_000, 10_000, 4)
    ()
    """
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
        steps.temporary(scan_by_key(chip, blocks))
    steps.free(*reversed(numbers))
    return steps.course()


EXTREMES_SINCE = "2.13"
"""The first release whose draws keep the least and greatest weight during the draw; measured, 2.11 did not."""

FEWER_WEIGHTS_SINCE = "2.15"
"""The first release whose draws with replacement hold the weights twice instead of three times; measured."""


@scratch("cuda", "aten::multinomial", source="aten/src/ATen/native/Distributions.cpp")
def multinomial(chip: Chip, out: Any, p: Any, samples: int, replacement: bool = False, **_: Any) -> Course:
    """Without replacement the numbers of the checks and an exponential per weight; else copies of the weights, summed.

    Exponentials have the weights' strides; several of the largest are found as by ``topk``.
    """
    weights = Alloc(nbytes(p))
    if replacement and samples > 1:
        copies_of_weights = 2 if since(FEWER_WEIGHTS_SINCE) else 3
        return Result(0), *[weights] * copies_of_weights, *buffers(scan_of_row(p, p, -1))
    extremes = (Alloc(itemsize(p)), Alloc(itemsize(p))) if since(EXTREMES_SINCE) else ()
    course = (Result(0), *extremes, Alloc(1), Alloc(1), weights)
    if samples == 1:
        return course
    drawn = (Alloc(elements(out) * itemsize(p)), *(copies(p) if is_dense(p) else ()))
    return joined(course, drawn, search(chip, elements(p), int(p.shape[-1]), itemsize(p)))


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


def _generation(chip: Chip) -> int:
    """Return the place of a GPU's policy in the tables below: before 8.0, 8.x, or 9.0 and later."""
    return (chip >= (8, 0)) + (chip >= (9, 0))


_PAIRS_OF_FOUR, _PAIRS_OF_EIGHT, _KEYS_OF_EIGHT = (2816, 3072, 5376), (2816, 3840, 4608), (2816, 3840, 5760)
_PAIRS_OF_SHORT, _BOTH_OF_FOUR = {1: 3456, 2: 5632}, (11_776, 6528, 6528)
_KEYS_OF_FOUR, _INTEGERS_OF_FOUR, _KEYS_OF_SHORT = (5888, 8064, 6912), (5888, 8064, 7296), 9728


def _sorted_items(chip: Chip, key: int, value: int, is_float: bool) -> int:
    """Return the items per tile of a sort."""
    generation = _generation(chip)
    if key <= 2:
        return _PAIRS_OF_SHORT[key] if value else _KEYS_OF_SHORT
    if not value:
        return (_KEYS_OF_EIGHT if key > 4 else _KEYS_OF_FOUR if is_float else _INTEGERS_OF_FOUR)[generation]
    return (_BOTH_OF_FOUR if key == value == 4 else _PAIRS_OF_FOUR if key <= 4 else _PAIRS_OF_EIGHT)[generation]


def radix_sort(
    chip: Chip,
    count: int,
    key: int,
    value: int,
    bits: int | None = None,
    overwrites: bool = False,
    is_float: bool = False,
) -> int:
    """Return the storage of a sort of ``count`` keys of ``key`` bytes, with values of ``value`` bytes, 0 for none.

    A sort that ``overwrites`` its input needs no copies. On compute capability 9.0, tiles of 4-byte keys without values
    depend on whether they are floating-point numbers.

    >>> radix_sort(Chip((9, 0)), 1_000_000, 4, 8), radix_sort(Chip((8, 0)), 100_000, 8, 8)
    (12200191, 1644543)

    One pass reads the input and writes the output, so it needs no copies:

    >>> radix_sort(Chip((9, 0)), 20_000, 8, 8, bits=6)
    7679
    """
    both_of_four = key == value == 4
    if count <= (SINGLE_TILE_OF_FOUR if both_of_four else SINGLE_TILE):
        return LEAST
    passes = ceil_div(bits or 8 * key, 8)
    copies = round_up(count * key, ALIGNED) + round_up(count * value, ALIGNED)
    generation = _generation(chip)
    if key <= 2 and generation < 2:
        counters = chip.multiprocessors * chip.threads * 10 * key
        return (0 if overwrites else copies) + counters + FULL_SORT + SLACK
    tiles = ceil_div(count, _sorted_items(chip, key, value, is_float))
    copies = 0 if overwrites or passes == 1 else copies
    return SLACK + passes * DIGITS * 8 + ALIGNED + tiles * DIGITS * 4 + copies


def _states(count: int, items: int, state: int) -> int:
    """Return the storage of a pass over tiles, with a state for each."""
    return 2 * ALIGNED - 1 + round_up((ceil_div(count, items) + PADDING) * state, ALIGNED)


def scan(count: int) -> int:
    """Return the storage of a running sum of 4-byte numbers.

    >>> scan(1_000_000)
    5119
    """
    return _states(count, 1920, 8)


def long_scan(count: int) -> int:
    """Return the storage of a running sum of 8-byte numbers.

    >>> long_scan(100_000)
    2815
    """
    return _states(count, 896, 16)


def half_scan(count: int) -> int:
    """Return the storage of a running sum of 2-byte numbers.

    >>> half_scan(1_000_000)
    3327
    """
    return _states(count, 7680, 16)


def scan_of_row(out: Any, x: Any, dim: int) -> int:
    """Return the bytes of CUB's storage, which a scan along one row of numbers needs."""
    whole = x.dim() and x.numel() and x.numel() == x.shape[dim]
    return {2: half_scan, 8: long_scan}.get(itemsize(out), scan)(x.numel()) if whole else 0


def scan_by_key(chip: Chip, count: int) -> int:
    """Return the storage of running sums of 4-byte numbers, a new one for each key.

    >>> scan_by_key(Chip((8, 0)), 20_000)
    1279
    """
    items = 4032 if chip >= (9, 0) else 3840 if tuple(chip) == (8, 0) else 2304
    return _states(count, items, 16)


def select(chip: Chip, count: int) -> int:
    """Return the storage of finding the places of non-zero elements.

    >>> select(Chip((9, 0)), 10_000_000)
    19711
    """
    items = 4224 if chip >= (9, 0) else 2304 if tuple(chip) == (8, 0) else 640
    return _states(count, items, 8)


def unique_by_key(chip: Chip, count: int, key: int) -> int:
    """Return the storage of finding where runs of equal keys of 4 or 8 bytes start.

    >>> unique_by_key(Chip((9, 0)), 1_000_000, 8), unique_by_key(Chip((7, 5)), 100_000, 4)
    (4351, 3327)
    """
    later, ampere, others = (7168, 2816, 704) if key == 4 else (4928, 1344, 320)
    items = later if chip >= (9, 0) else ampere if tuple(chip) == (8, 0) else others
    return _states(count, items, 16)


def count_sum(chip: Chip, count: int) -> int:
    """Return the storage of counting non-zero elements: a sum for each of five blocks for each resident block.

    >>> count_sum(Chip((8, 0)), 5000)
    17663
    """
    if count <= SINGLE_SUM:
        return LEAST
    return SLACK + round_up(chip.multiprocessors * (chip.threads // DIGITS) * 5 * 4, ALIGNED)
