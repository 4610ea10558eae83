"""Operators that reject mixed dtypes, although their meta kernels accept them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from ..ops.dtypes import HALVES

_ONE_DTYPE = {
    getattr(torch.ops.aten, name).default
    for name in (*("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution", "linear"),)
}
"""Operators that require a single dtype."""

ATTENTION = torch.ops.aten._native_multi_head_attention.default
_MASKED = {torch.ops.aten._transformer_encoder_layer_fwd.default, ATTENTION}
"""Likewise, except for a boolean mask."""

_NORMS = {getattr(torch.ops.aten, f"native_{name}_norm").default for name in ("batch", "layer", "group")}
"""Likewise, except for half-precision inputs with float32 parameters."""


def check_dtypes(func: OpOverload, tensors: Sequence[torch.Tensor]) -> None:
    """Raise RuntimeError if an operator would reject its tensors' dtypes."""
    if func in _ONE_DTYPE or func in _MASKED or func in _NORMS:
        _check(func, [tensor.dtype for tensor in tensors if func not in _MASKED or tensor.dtype is not torch.bool])


def _check(func: OpOverload, dtypes: list[torch.dtype]) -> None:
    first, others = dtypes[0], set(dtypes[1:])
    mixed = func in _NORMS and first in HALVES and others == {torch.float32}
    if others - {first} and not mixed:
        got = " and ".join(map(str, dtypes))
        raise RuntimeError(f"expected all arguments of {func._schema.name} to have the same dtype, but got {got}")
