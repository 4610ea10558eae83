"""CUDA: random numbers whose distribution is given by a tensor.

Source: aten/src/ATen/native/cuda/DistributionTemplates.h, MultinomialKernel.cu and
aten/src/ATen/native/Distributions.cpp, DistributionTemplates.h.
"""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ....live.versions import since
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, scratch
from ..sizes import elements, itemsize, nbytes
from .allocations import buffers, copies, joined, results
from .chips import chip_of
from .copies import scan_of_row
from .topk import search

BERNOULLI = "aten/src/ATen/native/cuda/DistributionTemplates.h, bernoulli_kernel"

EXTREMES_SINCE = "2.13"
"""The first release whose draws keep the least and greatest weight during the draw; measured, 2.11 did not."""

FEWER_WEIGHTS_SINCE = "2.15"
"""The first release whose draws with replacement hold the weights twice instead of three times; measured."""


@scratch("cuda", "aten::bernoulli", source=BERNOULLI, band=0.0)
def bernoulli(out: Any, probabilities: Any, **_: Any) -> Course:
    """The result, then a copy of the probabilities in the dtype of the draw."""
    return *results(out), *buffers(_in_float(out, probabilities))


@scratch("cuda", "aten::bernoulli_.Tensor", source=BERNOULLI, band=0.0)
def bernoulli_into(out: Any, target: Any, probabilities: Any, **_: Any) -> Course:
    """A copy of the probabilities in the dtype of the draw."""
    return buffers(_in_float(target, probabilities))


def _in_float(target: Any, probabilities: Any) -> int:
    """Return the bytes of the probabilities' copy in float64 for such a target, and in float32 for any other."""
    dtype = torch.float64 if target.dtype is torch.float64 else torch.float32
    return 0 if probabilities.dtype is dtype else elements(probabilities) * dtype.itemsize


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


NORMAL = "aten/src/ATen/native/DistributionTemplates.h"


@scratch("cuda", "aten::normal.Tensor_float", source=NORMAL, band=0.0)
def normal_around(out: Any, *_: Any, **__: Any) -> Course:
    """A tensor of the result's size, for the deviation that is one number."""
    return Result(0), Alloc(nbytes(out))


@scratch("cuda", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", source=NORMAL, band=0.0)
def normal_by(out: Any, mean: Any, deviation: Any, *_: Any, **__: Any) -> Course:
    """The least deviation, compared with 0."""
    return Alloc(itemsize(deviation)), Alloc(1), Free(1), Free(0), Result(0)
