"""CUDA: the largest elements of slices, for which several thread blocks search if slices are long or many.

Draws without replacement look for them too. Source: aten/src/ATen/native/cuda/TensorTopK.cu (``mbtopk``) and
TensorTopK.cpp; MultinomialKernel.cu and aten/src/ATen/native/Distributions.cpp.
"""

from __future__ import annotations

from typing import Any

from ....data.capability import Capability
from ....data.rounding import ceil_div
from ....live.versions import since
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, scratch
from ..sizes import INT64, elements, itemsize, nbytes
from .allocations import Allocations, buffers, copies, joined
from .chips import Chip, chip_of
from .copies import scan_of_row
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


EXTREMES_SINCE = "2.13"
"""The first release whose draws keep the least and greatest weight during the draw; measured, 2.11 did not."""

FEWER_WEIGHTS_SINCE = "2.15"
"""The first release whose draws with replacement hold the weights twice instead of three times; measured."""


@scratch("cuda", "aten::multinomial", source="aten/src/ATen/native/Distributions.cpp", band=0.0, by_capability=True)
def multinomial(capability: Capability, out: Any, p: Any, samples: int, replacement: bool = False, **_: Any) -> Course:
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
    return joined(course, drawn, search(chip_of(capability), elements(p), int(p.shape[-1]), itemsize(p)))
