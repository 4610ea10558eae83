"""CUDA: random numbers whose distribution is given by a tensor."""

from __future__ import annotations

from typing import Any

import torch

from ..registry import Course, scratch
from ..sizes import elements
from .allocations import buffers, results

BERNOULLI = "aten/src/ATen/native/cuda/DistributionTemplates.h, bernoulli_kernel"


@scratch("cuda", "aten::bernoulli", source=BERNOULLI, band=0.0)
def bernoulli(out: Any, probabilities: Any, **_: Any) -> Course:
    return *results(out), *buffers(_in_float(out, probabilities))


@scratch("cuda", "aten::bernoulli_.Tensor", source=BERNOULLI, band=0.0)
def bernoulli_into(out: Any, target: Any, probabilities: Any, **_: Any) -> Course:
    return buffers(_in_float(target, probabilities))


def _in_float(target: Any, probabilities: Any) -> int:
    """Return the bytes of the probabilities' copy in float64 for such a target, and in float32 for any other."""
    dtype = torch.float64 if target.dtype is torch.float64 else torch.float32
    return 0 if probabilities.dtype is dtype else elements(probabilities) * dtype.itemsize
