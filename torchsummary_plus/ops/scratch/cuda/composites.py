"""CUDA: operators that are computed by others in turn, or that first convert their input to the result's dtype."""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ..registry import Alloc, Course, Free, Lasting, Result, scratch
from ..sizes import INT64, copied, elements, itemsize, nbytes
from .allocations import Allocations, buffers, copies, joined
from .chips import chip_of
from .reductions import axes_of, course, magnitudes, mask_like, summing

CONVERTING = "aten/src/ATen/native/Pow.cpp and TensorCompare.cpp, by the iterator's common dtype"


@scratch("cuda", "aten::pow.Tensor_Scalar", "aten::clamp", source=CONVERTING, band=0.0)
def converted(out: Any, x: Any, *_: Any, **__: Any) -> Course:
    """The input in the result's dtype, ahead of the result."""
    return (Alloc(nbytes(out)), Result(0)) if x.dtype is not out.dtype else (Result(0),)


@scratch("cuda", "aten::pow.Scalar", source="aten/src/ATen/native/Pow.cpp: the base as a tensor", band=0.0)
def power(out: Any, *_: Any) -> int:
    """The base as a tensor."""
    return INT64


COUNTING = "aten/src/ATen/native/TensorAdvancedIndexing.cpp, count_nonzero_cuda"


@scratch("cuda", "aten::count_nonzero", "aten::count_nonzero.dim_IntList", source=COUNTING, band=0.0,
         by_capability=True)  # fmt: skip
def count_nonzero(capability: Capability, out: Any, x: Any, dims: Any = None, *_: Any) -> Course:
    """A mask, unless the input is one, then its sum as int64."""
    mask = () if x.dtype is torch.bool else (Alloc(elements(x)),)
    counting = course(chip_of(capability), mask_like(x), axes_of(dims), torch.int64, summing(torch.int64))
    return joined((*mask, Result(0)), counting)


MAGNITUDES = "aten/src/ATen/native/UnaryOps.cpp, unary_op_impl_with_complex_to_float_out"


@scratch("cuda", "aten::abs", "aten::angle", source=MAGNITUDES, band=0.0)
def magnitude(out: Any, x: Any) -> Course:
    """Of complex numbers a complex result, whose real parts are copied to the real one."""
    return Result(0), *buffers(nbytes(x) if x.is_complex() and not out.is_complex() else 0)


@scratch("cuda", "aten::isinf", source="aten/src/ATen/native/TensorCompare.cpp, isinf", band=0.0)
def isinf(out: Any, x: Any) -> Course:
    """The magnitudes of floating-point numbers; of complex ones those of a part, then of the other, and its flags."""
    if x.is_complex():
        part = Alloc(nbytes(x) // 2)
        return part, Result(0), Free(0), part, Alloc(elements(x))
    return (Alloc(nbytes(x)), Result(0)) if x.dtype.is_floating_point else (Result(0),)


@scratch("cuda", "aten::ldexp.Tensor", source="aten/src/ATen/native/BinaryOps.cpp, ldexp", band=0.0)
def ldexp(out: Any, x: Any, exponent: Any) -> Course:
    """The power of two, whose base is a tensor for a moment."""
    size = itemsize(exponent) if exponent.dtype.is_floating_point else torch.get_default_dtype().itemsize
    return Alloc(elements(exponent) * size), Alloc(INT64), Free(1), Result(0)


@scratch("cuda", "aten::mvlgamma", source="aten/src/ATen/native/UnaryOps.cpp, mvlgamma", band=0.0)
def mvlgamma(out: Any, x: Any, p: int) -> Course:
    """Half the steps up to ``p``, which are added to each element, and the sum of the results."""
    return Alloc(p * itemsize(out)), Alloc(p * nbytes(out)), Free(0), Result(0)


@scratch("cuda", "aten::renorm", source="aten/src/ATen/native/ReduceOps.cpp, renorm_out", band=0.0, by_capability=True)
def renorm(capability: Capability, out: Any, x: Any, p: Any, dim: int, *_: Any) -> Course:
    """Norms along an axis, in float32 at least, with their staging buffers; a factor for each in another dtype."""
    dtype, count = torch.float32 if itemsize(x) < 4 else x.dtype.to_real(), x.shape[dim]
    others = [axis for axis in range(x.dim()) if axis != dim % x.dim()]
    norms = course(chip_of(capability), x, others, dtype, magnitudes(x.dtype))
    return joined((Alloc(count * dtype.itemsize),), norms, buffers(count * itemsize(x) if x.dtype is not dtype else 0))


TIMES = "aten/src/ATen/native/ConvolutionTBC.cpp, conv_tbc: a product for each place of the kernel"


@scratch("cuda", "aten::conv_tbc", source=TIMES, band=0.0)
def conv_tbc(out: Any, x: Any, weight: Any, *_: Any, **__: Any) -> Course:
    """No copies; cuBLAS's workspace is requested after the result, by each product."""
    return Result(0), *(Lasting() for _ in range(len(weight)))


@scratch("cuda", "aten::_weight_int8pack_mm", source="aten/src/ATen/native/cuda/int8mm.cu", band=0.0)
def packed_product(out: Any, x: Any, weight: Any, scales: Any) -> Course:
    """Input, scales and product in float32, if they are not, and a contiguous copy of the weight."""
    singles = [0 if t.dtype is torch.float32 else 4 * elements(t) for t in (x, scales, out)]
    return *buffers(singles[0], copied(weight), *singles[1:]), Result(0)


ROLL = "aten/src/ATen/native/TensorTransformations.h, roll_common; cuda/TensorTransformations.cu, roll_cuda"


@scratch("cuda", "aten::roll", source=ROLL, band=0.0)
def roll(out: Any, x: Any, shifts: Any, dims: Any = (), *_: Any) -> Course:
    """A contiguous copy of the input, and one rolled tensor for each axis but the last, each freed by the next."""
    steps = Allocations()
    previous = list(steps.append(copies(x)))
    for _axis in dims[:-1]:
        rolled = steps.buffer(nbytes(x))
        steps.free(*previous)
        previous = [rolled]
    steps.result(0)
    return steps.course()
