"""CUDA: scratch memory of searches in sorted tensors.

Source: aten/src/ATen/native/cuda/Bucketization.cu, ``searchsorted_out_cuda``; BucketizationUtils.h.
"""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ...dtypes import result_type
from ..registry import Course, scratch
from ..sizes import INT64, elements
from .allocations import Allocations, copies
from .chips import chip_of
from .reductions import both_extremes, course

SOURCE = "aten/src/ATen/native/cuda/Bucketization.cu and BucketizationUtils.h"


@scratch("cuda", "aten::searchsorted.Tensor", "aten::searchsorted.Scalar", source=SOURCE, band=0.0, by_capability=True)
def searched(capability: Capability, out: Any, boundaries: Any, x: Any, *, sorter: Any = None, **_: Any) -> Course:
    """A number as a tensor; the extremes of a sorter; contiguous operands, then copies of them in one dtype."""
    steps = Allocations()
    tensor = x if isinstance(x, torch.Tensor) else torch.empty((), dtype=_DTYPES[type(x)], device="meta")
    if tensor is not x:
        steps.buffer(tensor.itemsize)
    if sorter is not None and sorter.numel():
        held = [steps.buffer(INT64), steps.buffer(INT64), *steps.append(copies(sorter))]
        order = torch.empty(sorter.shape, dtype=torch.int64, device="meta")
        steps.append(course(chip_of(capability), order, [], torch.int64, both_extremes(torch.int64)))
        steps.free(*held)
    steps.result(0)
    if not tensor.numel():
        return steps.course()
    rows = [steps.append(copies(operand)) for operand in (tensor, boundaries)]
    steps.append(copies(sorter))
    common = result_type(boundaries, x) if tensor.dtype is not boundaries.dtype else tensor.dtype
    for operand, row in zip((tensor, boundaries), rows):
        if operand.dtype is not common:
            steps.buffer(elements(operand) * common.itemsize)
            steps.free(*row)
    return steps.course()


_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}
"""The dtype of a number as a tensor."""


@scratch("cuda", "aten::bucketize.Tensor", "aten::bucketize.Scalar", source=SOURCE, band=0.0, by_capability=True)
def bucketed(capability: Capability, out: Any, x: Any, boundaries: Any, **_: Any) -> Course:
    """As :func:`searched`."""
    return searched(capability, out, boundaries, x)  # type: ignore[no-any-return]
