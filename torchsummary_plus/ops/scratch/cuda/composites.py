"""CUDA: operators that are computed by others in turn, or that first convert their input to the result's dtype."""

from __future__ import annotations

from typing import Any

from ..registry import Alloc, Course, Free, Result, scratch
from ..sizes import INT64, elements, nbytes
from .allocations import Allocations, buffers, copies

CONVERTING = "aten/src/ATen/native/Pow.cpp and TensorCompare.cpp, by the iterator's common dtype"


@scratch("cuda", "aten::pow.Tensor_Scalar", "aten::clamp", source=CONVERTING, band=0.0)
def converted(out: Any, x: Any, *_: Any, **__: Any) -> Course:
    """The input in the result's dtype, ahead of the result."""
    return (Alloc(nbytes(out)), Result(0)) if x.dtype is not out.dtype else (Result(0),)


@scratch("cuda", "aten::pow.Scalar", source="aten/src/ATen/native/Pow.cpp: the base as a tensor", band=0.0)
def power(out: Any, *_: Any) -> Course:
    """The base as a tensor."""
    return (Alloc(INT64),)


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


@scratch("cuda", "aten::isin.Tensor_Tensor", source="aten/src/ATen/native/TensorCompare.cpp, isin_default_kernel_gpu",
         band=0.0)  # fmt: skip
def is_in(out: Any, x: Any, tests: Any, **_: Any) -> Course:
    """For few test elements each pair is compared, and any of a row is copied to the result."""
    if elements(tests) >= 10 * elements(x) ** 0.145:  # Others are sorted together, by operators of their own.
        return ()
    return Result(0), Alloc(elements(x) * elements(tests)), Alloc(elements(x))


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
