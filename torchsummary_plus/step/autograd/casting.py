"""Autocast's casts for functions that are replaced before the operator's dispatch, where autocast would cast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...live import compat
from ...ops.dtypes import HALVES


def cast_on_cpu(operator: str, tensor: Any) -> Any:
    """Return a tensor as autocast casts it for an operator that it runs in float32 on the CPU.

    Source: aten/src/ATen/autocast_mode.cpp, ``KERNEL_CPU(..., fp32)``: the cast precedes autograd, which keeps it.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype not in HALVES or tensor.device.type != "cpu":
        return tensor
    is_cast = torch.is_autocast_enabled("cpu") and compat.has_kernel(operator, "AutocastCPU")
    return tensor.float() if is_cast else tensor
