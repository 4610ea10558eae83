"""CUDA: sorts, unique elements, random orders and draws.

Source: aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu, Sorting.cpp, Unique.cu, Randperm.cu, MultinomialKernel.cu and
aten/src/ATen/native/Distributions.cpp, DistributionTemplates.h.
"""

from __future__ import annotations

from math import ceil, log, log2
from typing import Any

import torch

from ....data.capability import Capability
from ....data.rounding import round_up
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, reserve, scratch
from ..sizes import INT64, copied, elements, itemsize, nbytes
from .chips import Chip, chip_of
from .cub import ALIGNED, SLACK, long_scan, radix_sort, scan, select
from .reductions import Kind, course, sum_like

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
    results = (Result(0), Result(1))
    length = int(x.shape[dim])
    if length <= SMALL:
        return *results, Alloc(INT64 * length)
    copies: tuple[Alloc, ...] = ()
    if x.stride(dim) != 1 or not is_dense(x):
        copies = (Alloc(nbytes(x)),)
    if x.stride(dim) != 1 and is_dense(x):
        copies += (Alloc(nbytes(x)), Alloc(INT64 * elements(x)))
    return *results, *copies, *rows_sorted(chip_of(capability), elements(x), length, itemsize(x), len(copies))


def rows_sorted(chip: Chip, count: int, length: int, key: int, first: int) -> Course:
    """Return the course of sorting long rows into results that exist; ``first`` buffers were allocated before."""
    rows = count // length
    if rows == 1 or length >= LARGE:
        return Alloc(INT64 * length), Alloc(radix_sort(chip, length, key, INT64)), Free(first + 1), Free(first)
    if rows >= FEW:
        return Alloc(INT64 * count), Alloc((key + INT64) * count + 255)
    pairs = Alloc(INT64 * count)
    whole = (pairs, pairs, Alloc(key * count), Alloc(radix_sort(chip, count, key, INT64)), Free(first + 3))
    return *whole, Free(first + 2), Alloc(radix_sort(chip, count, INT64, 0, rows.bit_length(), overwrites=True))


MEDIAN = "aten/src/ATen/native/cuda/Sorting.cpp, median_impl"


@scratch("cuda", "aten::median", source=MEDIAN, band=0.0, by_capability=True)
def median(capability: Capability, out: Any, x: Any) -> Course:
    """All elements are sorted."""
    steps = _all_sorted(capability, x)
    return (*steps, Result(0), Alloc(itemsize(x))) if steps else ()


@scratch("cuda", "aten::nanmedian", source=MEDIAN, band=0.0, by_capability=True)
def median_of_numbers(capability: Capability, out: Any, x: Any) -> Course:
    """All elements are sorted; then the numbers that are not NaN are counted, and one of them is looked up."""
    steps = _all_sorted(capability, x)
    if not steps:
        return ()
    first, chip = sum(isinstance(step, Alloc) for step in steps), chip_of(capability)
    flags = torch.empty(elements(x), dtype=torch.bool, device="meta")
    counting = course(chip, flags, [0], torch.int64, Kind(*sum_like(torch.int64), torch.int64), first + 2)
    place = first + 2 + sum(isinstance(step, Alloc) for step in counting)
    single, double = Alloc(4), Alloc(INT64)
    looked_up = double, single, double, *(Free(buffer) for buffer in (place + 1, place, first + 1, first))
    cast = (Free(first + 2),) if counting else ()
    return *steps, Alloc(elements(x)), double, *counting, *cast, *looked_up, Result(0)


def _all_sorted(capability: Capability, x: Any) -> Course:
    """Return the course of a sort of all elements, of which the sorted ones are left."""
    count = elements(x)
    if not count:
        return ()
    copies = (Alloc(copied(x)),) if copied(x) else ()
    first = len(copies)
    order = Alloc(INT64 * count)
    steps: tuple[Any, ...] = (*copies, Alloc(nbytes(x)), order)
    if count <= SMALL:
        steps += (order, Free(first + 2))
    else:
        steps += rows_sorted(chip_of(capability), count, count, itemsize(x), first + 2)
    return *steps, Free(first + 1)


UNIQUE = "aten/src/ATen/native/cuda/UniqueCub.cu, Unique.cu"


@reserve("cuda", "aten::_unique2", "aten::_unique", source=UNIQUE, band=0.0)
def unique_storage(out: Any, x: Any, *_: Any, **__: Any) -> tuple[int | None, ...]:
    """The elements are as many as the input's before they are resized; their storage stays large."""
    return nbytes(x), None, None


@scratch("cuda", "aten::_unique2", "aten::_unique", source=UNIQUE, band=0.0, by_capability=True)
def unique(
    capability: Capability, out: Any, x: Any, ordered: bool = True, inverse: bool = False, counts: bool = False
) -> Course:
    """The sorted elements, with their order for the inverse, then those that differ from the one before."""
    chip, count = chip_of(capability), elements(x)
    if not count:
        return ()
    order, copies = Alloc(INT64 * count), ((Alloc(copied(x)),) if copied(x) else ())
    first = len(copies)
    chosen = (Alloc(INT64), Alloc(select(chip, count)))
    if not inverse and not counts:
        storage = Alloc(radix_sort(chip, count, itemsize(x), 0))
        return Result(0), *copies, storage, Free(first), Alloc(nbytes(x)), *chosen
    storage = Alloc(radix_sort(chip, count, itemsize(x), INT64))
    ranked = (order, order, Alloc(scan(count)), Free(first + 4), Free(first + 3))
    return (
        *(*copies, Result(0), Result(1), order, storage, Free(first + 1), Free(first)),
        *(*ranked, Alloc(nbytes(x)), *chosen),
    )


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
    nbytes_of_order = INT64 * x.shape[dim]
    if not nbytes_of_order or not elements(x):
        return ()
    copies = (Alloc(nbytes(x)),) if dim % x.dim() or copied(x) else ()
    order, merge = Alloc(nbytes_of_order), Alloc(round_up(nbytes_of_order, ALIGNED) + ALIGNED + SLACK)
    place = len(copies) + 2
    scanned = (order, Alloc(long_scan(x.shape[dim])), Free(place + 1), Free(place)) if inverse else ()
    begins = (Alloc(nbytes_of_order + INT64),) if counts else ()
    return *copies, order, merge, Free(place - 1), Result(1), *scanned, *begins, Result(0), Result(2)


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


@scratch("cuda", "aten::multinomial", source="aten/src/ATen/native/Distributions.cpp", band=0.0)
def multinomial(out: Any, p: Any, samples: int, replacement: bool = False, **_: Any) -> Course:
    """Without replacement four numbers of the checks and an exponential per weight; else the weights three times.

    Exponentials have the weights' strides; to find several of the largest, they are copied if not contiguous.
    """
    weights = Alloc(nbytes(p))
    if replacement and samples > 1:
        return Result(0), weights, weights, weights
    checks = (Alloc(itemsize(p)), Alloc(itemsize(p)), Alloc(1), Alloc(1))
    copies = (weights,) if copied(p) and is_dense(p) else ()
    drawn = (Alloc(elements(out) * itemsize(p)), *copies) if samples > 1 else ()
    return Result(0), *checks, weights, *drawn


NORMAL = "aten/src/ATen/native/DistributionTemplates.h"


@scratch("cuda", "aten::normal.Tensor_float", source=NORMAL, band=0.0)
def normal_around(out: Any, *_: Any, **__: Any) -> Course:
    """A tensor of the result's size, for the deviation that is one number."""
    return Result(0), Alloc(nbytes(out))


@scratch("cuda", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", source=NORMAL, band=0.0)
def normal_by(out: Any, mean: Any, deviation: Any, *_: Any, **__: Any) -> Course:
    """The least deviation, compared with 0."""
    return Alloc(itemsize(deviation)), Alloc(1), Free(1), Free(0), Result(0)
