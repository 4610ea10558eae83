"""What an operator gives of which no fake kernel is known: as large as on the CPU, of zeros in the same shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..live.fakes import CPU, META, in_kernel, wrap
from .kernels import change_tensors, tensors_of

LARGEST = 1 << 27
"""Elements of all arguments together, half a GiB in single precision, for which zeros are made."""


def on_zeros(func: OpOverload, args: Any, kwargs: Any, device: torch.device) -> Any:
    """Fakes as large as what the operator gives of zeros; None where it gives none, and the caller tells why it asked.

    It gives none where it writes to its arguments, where they are too large, and where it refuses zeros in any way.
    """
    given = tensors_of((*args, *kwargs.values()))
    if func._schema.is_mutable or sum(tensor.numel() for tensor in given) > LARGEST:
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
