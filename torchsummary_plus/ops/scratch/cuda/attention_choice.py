"""Which kernel torch chooses for ``scaled_dot_product_attention`` on a GPU.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, ``select_sdp_backend`` and its three ``can_use_*`` checks,
and sdp_utils_cpp.h; differences between releases are marked by ``since``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from ....data.capability import Capability
from ....live.versions import since
from ...dtypes import HALVES
from .chips import LITTLE_SHARED_MEMORY

GROUPED_IN_EFFICIENT = since("2.14")
"""Whether the memory-efficient kernel supports grouped-query attention."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The properties of an attention call that decide its kernel."""

    query: Any
    key: Any
    value: Any
    mask: Any = None
    dropout: float = 0.0
    is_causal: bool = False
    is_grouped: bool = False

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def trains(self) -> bool:
        """Whether a gradient is needed, other than the mask's."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors)

    @property
    def trains_mask(self) -> bool:
        """Whether the mask needs a gradient."""
        return self.mask is not None and torch.is_grad_enabled() and bool(self.mask.requires_grad)

    @property
    def is_batched(self) -> bool:
        """Whether query, key and value have four axes each."""
        return all(tensor.dim() == 4 for tensor in self.tensors)

    @property
    def is_empty(self) -> bool:
        """Whether any axis of query, key or value has length 0."""
        return any(0 in tensor.shape for tensor in self.tensors)

    def has_heads(self, grouped: bool) -> bool:
        """Whether batches and heads match, or with ``grouped`` each key head serves a whole group of query heads."""
        heads, keys, values = (tensor.shape[1] for tensor in self.tensors)
        if len({tensor.shape[0] for tensor in self.tensors}) > 1:
            return False
        if not self.is_grouped:
            return bool(heads == keys == values)
        return bool(grouped and keys == values and heads % keys == 0)

    def has_rows(self, but_single: bool) -> bool:
        """Whether each row is contiguous; with ``but_single``, a row of one element may have any stride."""
        tensors = [*self.tensors, *(() if self.mask is None else (self.mask,))]
        return all(t.stride(-1) == 1 or (but_single and t.shape[-1] == 1) for t in tensors)


def attention_kernel(capability: Capability, call: Attention) -> str:
    """Return "cudnn", "flash", "efficient" or "math"; cuDNN comes first only on data-centre Hopper and Blackwell."""
    first_on = ((9, 0), (10, 0)) if since("2.9") else ()
    prefers_cudnn = capability in first_on and not os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED")
    checks = {"flash": _is_for_flash, "efficient": _is_for_efficient, "math": _is_for_math, "cudnn": _is_for_cudnn}
    order = ("cudnn", *(name for name in checks if name != "cudnn")) if prefers_cudnn else tuple(checks)
    return next((name for name in order if checks[name](capability, call)), "math")


def _is_for_math(capability: Capability, call: Attention) -> bool:
    return bool(torch.backends.cuda.math_sdp_enabled())


def _is_half(capability: Capability, call: Attention) -> bool:
    """Whether all tensors share one half-precision dtype that the GPU supports."""
    dtype = call.query.dtype
    same = call.key.dtype == call.value.dtype == dtype
    return bool(same) and (dtype is torch.float16 or (dtype is torch.bfloat16 and capability >= (8, 0)))


def requires_determinism() -> bool:
    """Whether torch raises an error for algorithms that are not deterministic, and so avoids them."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def _is_for_cudnn(capability: Capability, call: Attention) -> bool:
    if not torch.backends.cuda.cudnn_sdp_enabled() or not call.is_batched or call.is_empty or call.trains_mask:
        return False
    width, wide = call.query.shape[-1], call.value.shape[-1]
    widest = 256 if capability == (9, 0) else 128
    return bool(
        not requires_determinism()
        and (capability >= (8, 0) and (call.dropout * 16 % 1 == 0 or not since("2.12")))
        and (_is_half(capability, call) and call.has_heads(grouped=True) and call.has_rows(but_single=True))
        and min(call.query.shape[2], call.key.shape[2]) > 1
        and (width % 8 == wide % 8 == 0 and max(width, wide) <= widest)
    )


def _is_for_flash(capability: Capability, call: Attention) -> bool:
    if not torch.backends.cuda.flash_sdp_enabled() or not call.is_batched or call.is_empty:
        return False
    width = call.query.shape[-1]
    rows, columns = call.query.shape[2], call.key.shape[2]
    return bool(
        (call.mask is None and capability >= (8, 0) and _is_half(capability, call))
        and (width == call.key.shape[-1] == call.value.shape[-1] <= 256)
        and not (call.is_causal and rows != columns)
        and call.has_heads(grouped=True)
        and call.has_rows(but_single=True)
        and not (call.trains and capability in LITTLE_SHARED_MEMORY and _is_too_wide(width, call.dropout))
    )


def _is_too_wide(width: int, dropout: float) -> bool:
    """Whether flash attention's backward needs more shared memory than a consumer GPU has."""
    return 192 < width <= 224 or (width > 224 and dropout > 0.0)


def _is_for_efficient(capability: Capability, call: Attention) -> bool:
    if not torch.backends.cuda.mem_efficient_sdp_enabled() or not call.is_batched or call.is_empty:
        return False
    single = call.query.dtype is call.key.dtype is call.value.dtype is torch.float32
    half = call.query.dtype in HALVES
    cores = capability >= (8, 0) or (capability >= (7, 0) and half)
    alignment = max(4 if capability >= (8, 0) else 1, (8 if half else 4) if cores else 1)
    width, wide = call.query.shape[-1], call.value.shape[-1]
    return bool(
        (single or _is_half(capability, call))
        and (width == call.key.shape[-1] and width % alignment == wide % alignment == 0)
        and call.has_heads(grouped=GROUPED_IN_EFFICIENT)
        and call.has_rows(but_single=False)
    )
