"""CUDA: operators that convert their input to the result's dtype first, or that are computed by others in turn."""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ..registry import Alloc, Course, Free, Result, scratch
from ..sizes import elements, itemsize, nbytes
from .chips import chip_of
from .norms import LOGSUMEXP, logsumexp
from .reductions import Kind, course, sum_like

CONVERTING = "aten/src/ATen/native/Pow.cpp and TensorCompare.cpp, by the iterator's common dtype"
LENGTH_BYTES = 8


@scratch("cuda", "aten::pow.Tensor_Scalar", "aten::clamp", source=CONVERTING, band=0.0)
def converted(out: Any, x: Any, *_: Any, **__: Any) -> Course:
    """The input in the result's dtype, ahead of the result."""
    return (Alloc(nbytes(out)), Result(0)) if x.dtype is not out.dtype else (Result(0),)


@scratch("cuda", "aten::logsumexp", source=LOGSUMEXP, band=0.0, by_capability=True)
def logsumexp_of_any(capability: Capability, out: Any, x: Any, dims: Any, *_: Any, **__: Any) -> Course:
    """Integers as floating-point numbers, then as :func:`logsumexp`."""
    if x.dtype is out.dtype:
        return logsumexp(capability, out, x, dims)
    numbers = torch.empty(x.shape, dtype=out.dtype, device="meta")
    return Alloc(nbytes(numbers)), *_after(1, logsumexp(capability, out, numbers, dims))


COUNTING = "aten/src/ATen/native/TensorAdvancedIndexing.cpp, count_nonzero_cuda"


@scratch("cuda", "aten::count_nonzero", "aten::count_nonzero.dim_IntList", source=COUNTING, band=0.0,
         by_capability=True)  # fmt: skip
def count_nonzero(capability: Capability, out: Any, x: Any, dims: Any = None, *_: Any) -> Course:
    """A mask, unless the input is one, then its sum, of the mask as int64."""
    masks = () if x.dtype is torch.bool else (Alloc(elements(x)),)
    axes = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    mask = torch.empty(x.shape, dtype=torch.bool, device="meta")
    kind = Kind(*sum_like(torch.int64), torch.int64)
    return *masks, Result(0), *course(chip_of(capability), mask, axes, torch.int64, kind, first=len(masks))


@scratch("cuda", "aten::isinf", source="aten/src/ATen/native/TensorCompare.cpp, isinf", band=0.0)
def isinf(out: Any, x: Any) -> Course:
    """The magnitudes of floating-point numbers."""
    return (Alloc(nbytes(x)), Result(0)) if x.dtype.is_floating_point else (Result(0),)


@scratch("cuda", "aten::ldexp.Tensor", source="aten/src/ATen/native/BinaryOps.cpp, ldexp", band=0.0)
def ldexp(out: Any, x: Any, exponent: Any) -> Course:
    """The power of two, of which the base is a tensor for a moment."""
    size = itemsize(exponent) if exponent.dtype.is_floating_point else torch.get_default_dtype().itemsize
    return Alloc(elements(exponent) * size), Alloc(LENGTH_BYTES), Free(1), Result(0)


def _after(count: int, steps: Course) -> Course:
    return tuple(Free(step.buffer + count) if isinstance(step, Free) else step for step in steps)
