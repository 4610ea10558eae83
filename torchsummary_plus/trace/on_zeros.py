"""Results of operators without a known fake kernel: sizes from a run on zeros of the same shapes, on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..live.fakes import CPU, META, in_kernel, wrap
from .kernels import change_tensors, tensors_of

LARGEST = 1 << 27
"""Most elements of all arguments together for which zeros are allocated: half a GiB in float32."""


def on_zeros(func: OpOverload, args: Any, kwargs: Any, device: torch.device) -> Any:
    """Return fakes of the sizes that an operator returns on zeros.

    Return None if the operator writes to its arguments, they are too large, or it fails on zeros.
    """
    tensors = tensors_of((*args, *kwargs.values()))
    if func._schema.is_mutable or sum(tensor.numel() for tensor in tensors) > LARGEST:
        return None
    try:
        with torch.no_grad():
            out = func(*change_tensors(args, _zeros), **change_tensors(kwargs, _zeros))
    except Exception:
        return None
    with in_kernel():
        return change_tensors(out, lambda tensor: wrap(_empty(tensor), device)) if tensors_of(out) else None


def _zeros(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=CPU)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU).zero_()


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
