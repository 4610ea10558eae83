"""CUDA: sorts, unique elements and random orders.

Source: aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu, Sorting.cpp, Unique.cu and Randperm.cu.
"""

from __future__ import annotations

from math import ceil, log, log2
from typing import Any

import torch

from ....data.capability import Capability
from ....data.rounding import round_up
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, reserve, scratch
from ..sizes import INT64, elements, itemsize, nbytes
from .allocations import Allocations, buffers, copies, joined
from .chips import Chip, chip_of
from .cub import ALIGNED, SLACK, count_sum, long_scan, radix_sort, run_lengths, thrust_scan
from .cub import unique as cub_unique
from .reductions import course, summing

SORT = "aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu"
SMALL = 4096
"""Longest row that is sorted in place."""
LARGE, FEW = 1_000_000, 128
"""Rows from this length on are sorted one by one; fewer than 128 shorter ones are sorted as a whole."""


@scratch("cuda", "aten::sort", "aten::sort.stable", source=SORT, band=0.0, by_capability=True)
def sort(capability: Capability, out: Any, x: Any, *args: Any, **kwargs: Any) -> Course:
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
        steps.append(sorted_apart(chip_of(capability), x, dim))
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


MEDIAN = "aten/src/ATen/native/cuda/Sorting.cpp, median_impl"


@scratch("cuda", "aten::median", source=MEDIAN, band=0.0, by_capability=True)
def median(capability: Capability, out: Any, x: Any) -> Course:
    """All elements are sorted."""
    return joined(_all_sorted(capability, x), (Result(0), Alloc(itemsize(x)))) if elements(x) else ()


@scratch("cuda", "aten::nanmedian", source=MEDIAN, band=0.0, by_capability=True)
def median_of_numbers(capability: Capability, out: Any, x: Any) -> Course:
    """All elements are sorted; then the numbers that are not NaN are counted, and one of them is looked up."""
    if not elements(x):
        return ()
    steps = Allocations()
    steps.append(_all_sorted(capability, x))
    is_nan, nans = steps.buffer(elements(x)), steps.buffer(INT64)
    flags = torch.empty(elements(x), dtype=torch.bool, device="meta")
    cast = steps.append(course(chip_of(capability), flags, [0], torch.int64, summing(torch.int64)))[:1]
    steps.free(*cast)
    middle, place = steps.buffer(INT64), steps.buffer(4)
    steps.buffer(INT64)
    steps.free(place, middle, nans, is_nan)
    steps.result(0)
    return steps.course()


def _all_sorted(capability: Capability, x: Any) -> Course:
    """Return the course of a sort of all elements, of which the sorted ones remain."""
    count, steps = elements(x), Allocations()
    steps.append(copies(x))
    steps.buffer(nbytes(x))
    order = steps.buffer(INT64 * count)
    if count <= SMALL:
        steps.temporary(INT64 * count)
    else:
        steps.append(rows_sorted(chip_of(capability), count, count, itemsize(x)))
    steps.free(order)
    return steps.course()


UNIQUE = "aten/src/ATen/native/cuda/UniqueCub.cu, Unique.cu"


@reserve("cuda", "aten::_unique2", "aten::_unique", source=UNIQUE, band=0.0)
def unique_storage(
    out: Any, x: Any, ordered: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[int | None, ...]:
    """The elements, and their counts, are as many as the input's before they are resized; their storage stays large."""
    if x.dtype is torch.bool:
        return 2, INT64 * elements(x) * inverse, 2 * INT64
    return nbytes(x), *_places_and_counts(x, inverse, counts)


@reserve("cuda", "aten::unique_consecutive", source=UNIQUE, band=0.0)
def consecutive_storage(
    out: Any, x: Any, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> tuple[int | None, ...]:
    """As :func:`unique_storage`."""
    return (None, None, None) if dim is not None else (nbytes(x), *_places_and_counts(x, inverse, counts))


def _places_and_counts(x: Any, inverse: bool, counts: bool) -> tuple[int, int]:
    return INT64 * elements(x) * inverse, INT64 * elements(x) * counts


@scratch("cuda", "aten::_unique2", "aten::_unique", source=UNIQUE, band=0.0, by_capability=True)
def unique(
    capability: Capability, out: Any, x: Any, ordered: bool = True, inverse: bool = False, counts: bool = False
) -> Course:
    """The sorted elements, with their order for the inverse, then those that differ from the one before.

    Of booleans, the true ones are counted.
    """
    chip, count = chip_of(capability), elements(x)
    if not count:
        return ()
    if x.dtype is torch.bool:
        counted = Alloc(4), Alloc(count_sum(chip, count)), Free(1), Result(0), Result(2), Result(1)
        return joined(copies(x), counted)
    steps = Allocations()
    steps.append(copies(x))
    steps.buffer(nbytes(x))
    if inverse:
        steps.buffer(INT64 * count)
        places, storage = steps.buffer(INT64 * count), steps.buffer(radix_sort(chip, count, itemsize(x), INT64))
        steps.free(storage, places)
        steps.append(_inverted(chip, count, INT64))
    else:
        steps.temporary(radix_sort(chip, count, itemsize(x), 0, is_float=x.is_floating_point()))
    steps.append(_without_repetitions(chip, x, counts))
    return steps.course()


@scratch("cuda", "aten::unique_consecutive", source=UNIQUE, band=0.0, by_capability=True)
def unique_consecutive(
    capability: Capability, out: Any, x: Any, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> Course | None:
    """The places for the inverse, then the elements that differ from the one before; whole rows are not known."""
    if dim is not None:
        return None
    if not elements(x):
        return ()
    chip = chip_of(capability)
    inverted = _inverted(chip, elements(x), 4) if inverse else ()
    return joined(copies(x), inverted, _without_repetitions(chip, x, counts))


def _inverted(chip: Chip, count: int, flag: int) -> Course:
    """Return the course of finding each element's place among those that remain."""
    return Result(1), Alloc(flag * count), Alloc(thrust_scan(chip, count)), Free(1), Free(0)


def _without_repetitions(chip: Chip, x: Any, counts: bool) -> Course:
    """Return the course of removing, and counting, elements equal to the one before."""
    count, remain = elements(x), (Result(0), Alloc(INT64))
    is_half = x.dtype in (torch.float16, torch.bfloat16)
    storage = Alloc(run_lengths(count) if counts else cub_unique(chip, count, itemsize(x), is_half))
    counted = (Result(2),) if counts else ()
    return *remain, *counted, storage, Free(1), Free(0)


@reserve("cuda", "aten::unique_dim", source=UNIQUE, band=0.0)
def unique_rows(
    out: Any, x: Any, dim: int, is_sorted: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[int | None, ...]:
    """The rows' places and counts only on request."""
    return None, None if inverse else 0, None if counts else 0


@scratch("cuda", "aten::unique_dim", source=f"{UNIQUE}, unique_dim_cuda_template", band=0.01)
def unique_rows_scratch(
    out: Any, x: Any, dim: int, is_sorted: bool = True, inverse: bool = False, counts: bool = False
) -> Course:
    """The rows' order, and as much to merge it in, or to find the rows' places; then where each row begins."""
    rows = x.shape[dim]
    if not rows or not elements(x):
        return ()
    steps = Allocations()
    steps.append(buffers(nbytes(x)) if dim % x.dim() else copies(x))
    steps.buffer(INT64 * rows)
    steps.temporary(round_up(INT64 * rows, ALIGNED) + ALIGNED + SLACK)
    steps.result(1)
    if inverse:
        places, storage = steps.buffer(INT64 * rows), steps.buffer(long_scan(rows))
        steps.free(storage, places)
    if counts:
        steps.buffer(INT64 * (rows + 1))
    steps.result(0, 2)
    return steps.course()


@scratch("cuda", "aten::randperm", source="aten/src/ATen/native/cuda/Randperm.cu", band=0.0, by_capability=True)
def randperm(capability: Capability, out: Any, n: int, *_: Any, **__: Any) -> Course:
    """The numbers in order, and random keys before and after they are sorted."""
    if n <= 1:
        return ()
    bits = min(64, ceil(log2(n - (6 * n * n + 1) / (12 * log(0.9)))))
    key = 4 if bits <= 32 else 8
    keys = Alloc(key * n)
    numbers = Alloc(itemsize(out) * n)
    return Result(0), numbers, keys, keys, Alloc(radix_sort(chip_of(capability), n, key, itemsize(out), bits))
