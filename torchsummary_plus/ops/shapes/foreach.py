"""Foreach operators, whose tensors torch would otherwise check one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from .registry import FLOATS, Out, Outs, Unsure, is_dense, rule, sure

KEEPING = (
    "abs add.List add.Scalar add.ScalarList addcdiv.Scalar addcdiv.ScalarList addcmul.Scalar addcmul.ScalarList "
    "div.List div.Scalar div.ScalarList lerp.List lerp.Scalar maximum.List mul.List mul.Scalar mul.ScalarList neg "
    "pow.Scalar reciprocal sign sqrt sub.List sub.Scalar"
)
"""Element-wise operators of optimizers, whose results have the dtype of floating-point operands."""


@rule(*(f"_foreach_{name}" for name in KEEPING.split()))
def elementwise(*args: Any, **options: Any) -> Outs:
    """New tensors like those of the lists, if these agree in shape, strides and dtype and all numbers are real."""
    others = [value for value in (*args, *options.values()) if not _is_tensors(value)]
    sure(all(isinstance(number, (int, float)) for value in others for number in _numbers(value)))
    return [_like(tensors) for tensors in _by_place(args)]


def writes_alike(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether an operator only writes to lists of floating-point tensors that agree in shape, strides and dtype.

    No kernel refuses these; any other arguments are for torch's own kernel to run or to refuse.
    """
    if not _writes_lists(func):
        return False
    try:
        return all(_like(tensors) for tensors in _by_place(args))
    except Unsure:
        return False


@cache
def _writes_lists(func: OpOverload) -> bool:
    schema = func._schema
    return schema.name.startswith("aten::_foreach_") and schema.is_mutable and not schema.returns


def _is_tensors(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value)


def _numbers(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _by_place(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the tensors of each place of the lists."""
    lists = [value for value in args if _is_tensors(value)]
    sure(lists and len({len(value) for value in lists}) == 1)
    sure(not any(isinstance(value, Tensor) for value in args))
    return list(zip(*lists))


def _like(tensors: tuple[Any, ...]) -> Out:
    """Return a new tensor like several that agree."""
    first = tensors[0]
    sure(all(isinstance(tensor, Tensor) and tensor.layout is torch.strided for tensor in tensors))
    sure(first.dtype in FLOATS and (first.is_contiguous() or is_dense(first)))
    shape, strides, dtype, device = first.shape, first.stride(), first.dtype, first.device
    for tensor in tensors[1:]:
        sure(tensor.dtype is dtype and tensor.device == device and tensor.shape == shape and tensor.stride() == strides)
    return shape, strides, dtype
