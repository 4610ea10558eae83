"""Scratch memory of pointwise operators on the CPU: operands cast to the common dtype, numbers as tensors."""

from __future__ import annotations

from typing import Any

import torch

from ...dtypes import result_type
from ..registry import ALL_RESULTS, AtMost, Phase, scratch
from ..sizes import INT64, NATIVE, copied, elements, itemsize

ITERATOR = (
    "aten/src/ATen/TensorIterator.cpp, compute_types: an operand of another dtype is cast into a temporary tensor"
)

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""The tensor dtype of each Python number type."""


def cast_bytes(operand: Any, common: Any) -> int:
    """Return the bytes of an operand's cast to the common dtype; of a number, plus its original tensor."""
    if isinstance(operand, torch.Tensor):
        return 0 if operand.dtype is common else elements(operand) * int(common.itemsize)
    kind = _NUMBERS.get(type(operand))
    if kind is None:
        return 0
    return int(kind.itemsize) + (0 if kind is common else int(common.itemsize))


_ARITHMETIC = (
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "rsub.Scalar", "pow.Tensor_Tensor"),
    *(
        "maximum",
        "minimum",
        "atan2",
        "remainder.Scalar",
        "remainder.Tensor",
        "fmod.Scalar",
        "fmod.Tensor",
    ),
    "remainder.Scalar_Tensor",
    *("add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar", "rsub.Tensor"),
    *(
        "floor_divide",
        "floor_divide.Scalar",
        "div.Tensor_mode",
        "div.Scalar_mode",
        "logaddexp",
        "logaddexp2",
        "fmin",
        "fmax",
        "nextafter",
        "hypot",
        "gcd",
        "lcm",
    ),
    *("xlogy.Scalar_Other", "xlogy.Scalar_Self", "copysign.Scalar", "heaviside", "igamma", "igammac"),
    *(f"bitwise_{name}.{kind}" for name in ("and", "or", "xor") for kind in ("Tensor", "Scalar", "Scalar_Tensor")),
    *(
        f"bitwise_{way}_shift.{kind}"
        for way in ("left", "right")
        for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    ),
)


@scratch("cpu", *(f"aten::{name}" for name in _ARITHMETIC), source=ITERATOR, band=0.0)
def _arithmetic(out: Any, a: Any, b: Any, *_: Any, **scale: Any) -> int:
    """Operands are cast to the result's dtype."""
    return cast_bytes(a, out.dtype) + cast_bytes(b, out.dtype)


_COMPARISONS = (
    *(f"aten::{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")),
    *(f"aten::logical_{name}" for name in ("and", "or", "xor")),
)


@scratch("cpu", *_COMPARISONS, source=ITERATOR, band=0.0)
def _comparison(out: Any, a: Any, b: Any) -> int:
    common = result_type(a, b)
    return cast_bytes(a, common) + cast_bytes(b, common)


@scratch("cpu", "aten::addcmul", "aten::addcdiv", "aten::lerp.Tensor", "aten::lerp.Scalar",
         source=ITERATOR, band=0.0)  # fmt: skip
def _ternary(out: Any, *operands: Any, **scale: Any) -> int:
    return sum(cast_bytes(t, out.dtype) for t in operands if isinstance(t, torch.Tensor))


@scratch("cpu", "aten::where.self", source=ITERATOR, band=0.0)
def _where(out: Any, condition: Any, x: Any, other: Any) -> int:
    return cast_bytes(condition, torch.bool) + cast_bytes(x, out.dtype) + cast_bytes(other, out.dtype)


@scratch("cpu", "aten::cat", "aten::stack", source=f"{NATIVE}TensorShape.cpp, cat_out_cpu", band=0.0)
def _joined(out: Any, tensors: Any, *_: Any) -> int:
    """A copy of each tensor of another dtype, one after another."""
    return max((elements(t) * itemsize(t) for t in tensors if t.dtype is not out.dtype), default=0)


_FLOATING = (
    *("sqrt", "rsqrt", "exp", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "reciprocal", "expm1"),
    *("asin", "asinh", "atan", "atanh", "acos", "acosh", "sinh", "cosh", "tan", "erfinv", "erfc", "lgamma", "digamma"),
    *("log2", "log10", "exp2", "sinc", "i0", "special_i0", "special_i0e", "special_i1", "special_i1e"),
    *("special_ndtri", "special_log_ndtr", "special_erfcx", "special_entr", "special_airy_ai"),
    *(f"special_bessel_{kind}" for kind in ("j0", "j1", "y0", "y1")),
    *(f"special_modified_bessel_{kind}" for kind in ("i0", "i1", "k0", "k1")),
    *("special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0"),
)
"""Functions with a floating-point result, whose integers are cast first."""
_POLYNOMIALS = ("chebyshev_polynomial_{}", "shifted_chebyshev_polynomial_{}")
_ORTHOGONAL = (
    *(name.format(kind) for name in _POLYNOMIALS for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
)
_OF_TWO = (
    *("copysign.Tensor", "xlogy.Tensor"),
    *(f"special_{name}{kind}" for name in ("xlog1py", "zeta") for kind in ("", ".self_scalar", ".other_scalar")),
    *(f"special_{name}{kind}" for name in _ORTHOGONAL for kind in ("", ".x_scalar", ".n_scalar")),
)
"""The same of two operands, one of which may be a number."""


@scratch("cpu", *(f"aten::{name}" for name in _FLOATING), source=ITERATOR, band=0.0)
def _floating(out: Any, x: Any, *_: Any, **kwargs: Any) -> int:
    """Integers are cast to floating-point."""
    return cast_bytes(x, out.dtype)


@scratch("cpu", "aten::cumsum_", "aten::cumprod_", source=f"{NATIVE}ReduceOps.cpp, impl_func_cum_ops", band=0.0)
def _running_in_place(out: Any, x: Any, *_: Any, **__: Any) -> int:
    """A single element is copied."""
    return 0 if x.dim() else itemsize(x)


@scratch("cpu", "aten::cumsum", "aten::cumprod", source=f"{NATIVE}ReduceOps.cpp, impl_func_cum_ops", band=0.0)
def _running(out: Any, x: Any, *_: Any, **__: Any) -> int:
    """Elements of another dtype than the result's are cast; a single one is filled in."""
    return cast_bytes(x, out.dtype) if x.dim() else 0


@scratch("cpu", "aten::polygamma", source=ITERATOR, band=0.0)
def _polygamma(out: Any, order: int, x: Any) -> int:
    return cast_bytes(x, out.dtype)


@scratch("cpu", *(f"aten::{name}" for name in _OF_TWO), source=ITERATOR, band=0.0)
def _floating_of_two(out: Any, a: Any, b: Any) -> int:
    return cast_bytes(a, out.dtype) + cast_bytes(b, out.dtype)


@scratch("cpu", "aten::deg2rad", "aten::rad2deg", source=f"{NATIVE}UnaryOps.cpp: a product with a number", band=0.0)
def _in_degrees(out: Any, x: Any) -> int:
    return cast_bytes(x, out.dtype) + cast_bytes(1.0, out.dtype)


@scratch("cpu", "aten::mvlgamma", source=f"{NATIVE}UnaryOps.cpp, mvlgamma", band=0.0)
def _multivariate_gamma(out: Any, x: Any, p: int) -> tuple[Phase, ...]:
    """Half the steps up to ``p`` are added to each element, the results summed, and a number is added to the sum."""
    terms = p * elements(out) * itemsize(out)
    return Phase(0, p * itemsize(out) + terms), Phase(ALL_RESULTS, terms + cast_bytes(1.0, out.dtype))


@scratch("cpu", "aten::pow.Tensor_Scalar", source=f"{NATIVE}Pow.cpp", band=0.0)
def _power(out: Any, x: Any, exponent: Any) -> int:
    return cast_bytes(x, out.dtype)


@scratch("cpu", "aten::pow.Scalar", source=f"{NATIVE}Pow.cpp", band=0.0)
def _power_of_number(out: Any, base: Any, x: Any) -> int:
    """Powers of 1 are filled in, those of True are not."""
    return 0 if base is not True and base == 1 else cast_bytes(base, out.dtype) + cast_bytes(x, out.dtype)


@scratch("cpu", "aten::ldexp.Tensor", source=f"{NATIVE}BinaryOps.cpp, ldexp: x * pow(2.0, other)", band=0.0)
def _scaled_by_powers(out: Any, x: Any, other: Any) -> tuple[Phase, ...] | AtMost:
    """The powers of 2, with what is cast for them, and then for the product; of other dtypes this is a bound."""
    number, common = 2.0, result_type(other, 2.0)
    powers = elements(other) * int(common.itemsize)
    cast = cast_bytes(number, common) + cast_bytes(other, common)
    product = cast_bytes(x, out.dtype) + (0 if common is out.dtype else elements(other) * itemsize(out))
    if x.dtype is not other.dtype or not x.dtype.is_floating_point:
        return AtMost(powers + max(cast, product))
    return Phase(0, powers + cast), Phase(ALL_RESULTS, powers + product)


@scratch("cpu", "aten::equal", source=f"{NATIVE}ReduceOps.cpp, cpu_equal", band=0.0)
def _equal(out: Any, a: Any, b: Any) -> int:
    common = result_type(a, b)
    return cast_bytes(a, common) + cast_bytes(b, common) if a.shape == b.shape else 0


_BOUNDS = tuple(f"aten::{name}{kind}" for name in ("clamp", "clamp_min", "clamp_max") for kind in ("", ".Tensor"))


@scratch("cpu", *_BOUNDS, source=ITERATOR, band=0.0)
def _bounded(out: Any, *operands: Any, **bounds: Any) -> int:
    """Bounds that are numbers stay numbers."""
    return sum(cast_bytes(t, out.dtype) for t in (*operands, *bounds.values()) if isinstance(t, torch.Tensor))


@scratch("cpu", "aten::logit", source=ITERATOR, band=0.0)
def _logit(out: Any, x: Any, eps: Any = None) -> int:
    return cast_bytes(x, out.dtype)


@scratch(
    "cpu", "aten::abs", "aten::angle", source=f"{NATIVE}UnaryOps.cpp, unary_op_impl_with_complex_to_float_out", band=0.0
)
def _absolute(out: Any, x: Any) -> int:
    """For complex inputs, a complex result first; the angles of integers are those of floats."""
    return elements(x) * itemsize(x) if x.dtype.is_complex else cast_bytes(x, out.dtype)


@scratch("cpu", "aten::isinf", source=f"{NATIVE}TensorCompare.cpp, isinf", band=0.0)
def _infinite(out: Any, x: Any) -> int:
    """Absolute values compared with a number; for complex inputs, one part next to the other's result."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return 0
    part = x.dtype.to_real()
    return elements(x) * int(part.itemsize + x.dtype.is_complex) + cast_bytes(float("inf"), part)


@scratch("cpu", "aten::rrelu_with_noise", "aten::rrelu_with_noise_", source=f"{NATIVE}Activation.cpp", band=0.0)
def _leaky(
    out: Any, x: Any, noise: Any, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, *_: Any
) -> int:
    """In training, contiguous copies; else both bounds, their sum, its half, and twice the number 2, for the slope."""
    if training:
        return copied(x) + copied(out)
    half = torch.float32 if isinstance(lower, int) and isinstance(upper, int) else torch.float64
    return 3 * int(_NUMBERS[type(lower)].itemsize) + half.itemsize + 2 * torch.float64.itemsize


_FOREACH = tuple(
    f"aten::_foreach_{name}.{kind}"
    for name in ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_")
    for kind in ("Scalar", "ScalarList")
)


@scratch("cpu", *_FOREACH, source=f"{NATIVE}ForeachOpsKernels.cpp: on the CPU one tensor after another", band=0.0)
def _foreach(out: Any, tensors: Any, numbers: Any) -> int:
    """The scalar of the last tensor, when all other results exist."""
    return cast_bytes(numbers[-1] if isinstance(numbers, (list, tuple)) else numbers, tensors[-1].dtype)


@scratch("cpu", "aten::_foreach_pow.ScalarAndTensor", source=f"{NATIVE}ForeachOpsKernels.cpp", band=0.0)
def _foreach_power(out: Any, base: Any, exponents: Any) -> int:
    return cast_bytes(base, exponents[-1].dtype)


SEARCH = f"{NATIVE}Bucketization.cpp and BucketizationUtils.h"


@scratch("cpu", "aten::searchsorted.Tensor", "aten::searchsorted.Scalar", source=SEARCH, band=0.0)
def _searched(out: Any, boundaries: Any, x: Any, *, sorter: Any = None, **_: Any) -> tuple[Phase, ...]:
    """Contiguous operands of one dtype; before the result, the least and the largest position of a sorter."""
    common = result_type(boundaries, x)
    tensors = [each for each in (boundaries, x, sorter) if isinstance(each, torch.Tensor)]
    operands = sum(map(copied, tensors)) + cast_bytes(boundaries, common) + cast_bytes(x, common)
    return Phase(0, 0 if sorter is None else 2 * INT64), Phase(ALL_RESULTS, operands)


@scratch("cpu", "aten::bucketize.Tensor", "aten::bucketize.Scalar", source=SEARCH, band=0.0)
def _bucketed(out: Any, x: Any, boundaries: Any, **_: Any) -> tuple[Phase, ...]:
    phases: tuple[Phase, ...] = _searched(out, boundaries, x)
    return phases
