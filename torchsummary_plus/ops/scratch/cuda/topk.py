"""CUDA: the largest elements of slices, which several thread blocks search for if slices are long or many.

Source: aten/src/ATen/native/cuda/TensorTopK.cu (``mbtopk``) and TensorTopK.cpp.
"""

from __future__ import annotations

from typing import Any

from ....data.capability import Capability
from ....data.rounding import ceil_div
from ..registry import Course, Free, scratch
from ..sizes import INT64, elements, itemsize, nbytes
from .allocations import Allocations, copies
from .chips import Chip, chip_of
from .cub import scan_by_key
from .sorting import SMALL, sorted_apart

SEVERAL = ((20, 20_000), (40, 10_000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""So many slices are searched by several blocks each from this length on; more slices from ``LEAST`` on."""
LEAST = 400
THREADS, BLOCKS_EACH = 256, 6
"""Threads of a block, and blocks per multiprocessor, of 40 registers a thread."""
FEWEST, MOST = 4, 64
"""Elements of a thread."""
DIGITS, COUNTER = 256, 2
"""Values of one byte, of which each block counts the elements, and bytes of a count."""


@scratch("cuda", "aten::topk", source="aten/src/ATen/native/cuda/TensorTopK.cu", band=0.0, by_capability=True)
def topk(
    capability: Capability, out: Any, x: Any, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> Course:
    """A contiguous copy and the search; more than 4,096 elements of a slice are sorted into other tensors."""
    steps, chip = Allocations(), chip_of(capability)
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
    if length < next((least for most, least in SEVERAL if slices <= most), LEAST):
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
