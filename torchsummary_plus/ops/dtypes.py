"""Kinds of dtypes, and their promotion."""

from __future__ import annotations

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
"""Half precision."""


def dtype_of_number(number: complex) -> torch.dtype:
    """Return the dtype in which operators with tensors compute a Python number.

    >>> dtype_of_number(True), dtype_of_number(1), dtype_of_number(1.0), dtype_of_number(1j)
    (torch.bool, torch.int64, torch.float32, torch.complex64)
    """
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        return torch.int64
    default = torch.get_default_dtype()
    return default if isinstance(number, float) else default.to_complex()


def result_type(*operands: Tensor | complex) -> torch.dtype:
    """Return the dtype in which operands are computed, as ``torch.result_type``, which takes no fakes, does.

    Tensors outrank 0-d tensors, which outrank numbers, within a category: boolean, integer, float, complex.

    Source: aten/src/ATen/native/TypeProperties.cpp, ``result_type``.

    >>> result_type(torch.ones(2, dtype=torch.float16), torch.tensor(1.0), 3), result_type(torch.ones(2), 1j)
    (torch.float16, torch.complex64)
    """
    levels: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Tensor):
            level, dtype = 0 if operand.dim() else 1, operand.dtype
        else:
            level, dtype = 2, dtype_of_number(operand)
        known = levels[level]
        levels[level] = dtype if known is None else torch.promote_types(known, dtype)
    combined = _combined(levels[0], _combined(levels[1], levels[2]))
    assert combined is not None  # There is at least one operand.
    return combined


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of two levels: the higher's, unless the lower's category is above it."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    is_above = lower.is_floating_point or lower.is_complex
    return torch.promote_types(higher, lower) if is_above or higher is torch.bool else higher
