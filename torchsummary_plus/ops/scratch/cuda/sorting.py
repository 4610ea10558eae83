"""CUDA: sorts and random orders.

Source: aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu and Randperm.cu.
"""

from __future__ import annotations

from math import ceil, log, log2
from typing import Any

from ....data.capability import Capability
from ....data.rounding import round_up
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Result, scratch
from ..sizes import INT64, elements, itemsize, nbytes
from .allocations import Allocations
from .chips import Chip, chip_of
from .cub import ALIGNED, SLACK, radix_sort

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
