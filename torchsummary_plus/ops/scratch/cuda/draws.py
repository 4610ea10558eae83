"""CUDA: random numbers whose distribution is given by a tensor.

Source: aten/src/ATen/native/cuda/MultinomialKernel.cu and aten/src/ATen/native/Distributions.cpp.
"""

from __future__ import annotations

from typing import Any

from ....data.capability import Capability
from ....live.versions import since
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Result, scratch
from ..sizes import elements, itemsize, nbytes
from .allocations import buffers, copies, joined
from .chips import chip_of
from .copies import scan_of_row
from .topk import search

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
