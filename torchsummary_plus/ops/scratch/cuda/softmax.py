"""CUDA: scratch memory of softmax and of log-sum-exp.

Source: aten/src/ATen/native/cuda/SoftMax.cu, aten/src/ATen/native/transformers/attention.cpp and ReduceOps.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, scratch
from ..sizes import elements, itemsize, nbytes
from .allocations import Allocations, copies, joined
from .chips import chip_of
from .reductions import course, extreme, mask_like, part_of, summing

SAFE_SOFTMAX = "aten/src/ATen/native/transformers/attention.cpp, _safe_softmax"


@scratch("cuda", "aten::_safe_softmax", source=SAFE_SOFTMAX, band=0.0, by_capability=True)
def safe_softmax(capability: Capability, out: Any, x: Any, dim: int, dtype: Any = None) -> Course:
    """A copy for the softmax; masks of -inf elements and of rows of nothing else, and the value that replaces those."""
    if not x.numel():
        return ()
    copied = copies(x)
    softmax: Course = (Result(0), *copied, *(Free(place) for place in range(len(copied))))
    masks = Alloc(elements(x)), Alloc(elements(x) // x.shape[dim])
    stages = course(chip_of(capability), mask_like(x), [dim], torch.bool, extreme(torch.bool))
    return joined(softmax, masks, stages, (Alloc(itemsize(out)),))


@scratch("cuda", "aten::_softmax_backward_data", source="aten/src/ATen/native/cuda/SoftMax.cu", band=0.0)
def softmax_backward(out: Any, grad: Any, *_: Any) -> Course:
    """The product of gradient and output, in the gradient's layout, and a contiguous copy of it."""
    product = Alloc(nbytes(grad))
    return (product, product) if is_dense(grad) and not grad.is_contiguous() else (product,)


@scratch("cuda", "aten::logsumexp", source="aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl", band=0.0,
         by_capability=True)  # fmt: skip
def logsumexp(capability: Capability, out: Any, x: Any, dims: Any, *_: Any, **__: Any) -> Course:
    """Integers as floating-point numbers; the maxima with a mask of infinite ones; the exponentials and their sum.

    The maxima of complex numbers are those of their real parts.
    """
    steps = Allocations()
    if x.dtype is not out.dtype:
        x = torch.empty(x.shape, dtype=out.dtype, device="meta")
        steps.buffer(nbytes(x))
    if not x.numel():
        return steps.course()
    chip, dtype = chip_of(capability), x.dtype
    compared = part_of(x) if x.is_complex() else x
    real = compared.dtype
    maxima = steps.buffer(elements(out) * real.itemsize)
    steps.append(course(chip, compared, dims, real, extreme(real)))
    is_infinite = steps.buffer(elements(out))
    steps.free(is_infinite, maxima)
    steps.buffer(nbytes(x))
    steps.buffer(elements(out) * real.itemsize)
    steps.append(course(chip, x, dims, dtype, summing(dtype)))
    return steps.course()
