"""Scratch memory of elementwise operators on the CPU that write to their first operand."""

from __future__ import annotations

from typing import Any

import torch

from ...dtypes import result_type
from ..registry import scratch
from .pointwise import ITERATOR, cast_bytes

_WITH_NUMBERS = (
    "add",
    "sub",
    "mul",
    "div",
    "remainder",
    "fmod",
    "copysign",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
)
"""Operators of a tensor and another, or a number."""
_OF_TENSORS = (
    *("atan2", "hypot", "nextafter", "gcd", "lcm", "heaviside", "igamma", "igammac"),
    *("pow.Tensor", "floor_divide.Tensor", "floor_divide.Scalar", "div.Tensor_mode", "div.Scalar_mode"),
    *("xlogy.Tensor", "xlogy.Scalar_Other", "clamp_min.Tensor", "clamp_max.Tensor"),
)
_IN_PLACE = (
    *(f"{name}.{kind}" for name in _WITH_NUMBERS for kind in ("Tensor", "Scalar")),
    *(f"bitwise_{way}_shift.{kind}" for way in ("left", "right") for kind in ("Tensor", "Tensor_Scalar")),
    *_OF_TENSORS,
)


def in_place(name: str) -> str:
    """Return the dispatcher's name of an operator's variant that writes to its first operand.

    >>> in_place("div.Tensor_mode")
    'aten::div_.Tensor_mode'
    """
    base, dot, overload = name.partition(".")
    return f"aten::{base}_{dot}{overload}"


def written(target: Any, *operands: Any) -> int:
    """Return the casts of operands to their common dtype, and of the result, which is then copied to the target."""
    common = result_type(target, *operands)
    return sum(cast_bytes(operand, common) for operand in (target, target, *operands))


@scratch("cpu", *map(in_place, _IN_PLACE), source=ITERATOR, band=0.0)
def _in_place(out: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    """The result goes to a temporary tensor if the target has another dtype; the target is cast like any operand."""
    return written(a, b)


_COMPARISONS = (
    *(f"{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")),
    *(f"logical_{name}" for name in ("and", "or", "xor")),
)


@scratch("cpu", *map(in_place, _COMPARISONS), source=f"{ITERATOR}; build_comparison_op", band=0.0)
def _comparison_in_place(out: Any, a: Any, b: Any) -> int:
    """Booleans are written directly, other dtypes as the results of arithmetic."""
    common = result_type(a, b)
    return cast_bytes(a, common) + cast_bytes(b, common) if a.dtype is torch.bool else written(a, b)


@scratch("cpu", "aten::addcmul_", "aten::addcdiv_", source=ITERATOR, band=0.0)
def _ternary_in_place(out: Any, target: Any, a: Any, b: Any, **_: Any) -> int:
    return written(target, a, b)


@scratch("cpu", "aten::clamp_.Tensor", source=ITERATOR, band=0.0)
def _clamped_in_place(out: Any, x: Any, *operands: Any, **bounds: Any) -> int:
    return written(x, *(bound for bound in (*operands, *bounds.values()) if bound is not None))


@scratch("cpu", "aten::deg2rad_", "aten::rad2deg_", source="aten/src/ATen/native/UnaryOps.cpp: a product with a number",
         band=0.0)  # fmt: skip
def _in_degrees(out: Any, x: Any) -> int:
    return cast_bytes(1.0, x.dtype)
