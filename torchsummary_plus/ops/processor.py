"""What torch's CPU kernels and oneDNN support, and the precision in which they multiply."""

from __future__ import annotations

from functools import cache

import torch

from ..live import compat
from .dtypes import HALVES


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN reports support for a half-precision dtype at all; builds without oneDNN have none.

    Source: ideep's ``has_bf16_type_support`` and ``has_fp16_type_support``.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def float32_precisions() -> tuple[str, ...]:
    """Return the precisions in which torch is told to compute on float32: "bf16" and "tf32" are lower.

    Before torch 2.9, ``torch.set_float32_matmul_precision`` is the only way.
    """
    own = compat.float32_precision
    return torch.get_float32_matmul_precision(), own("mkldnn", "matmul"), own("mkldnn", "conv"), own("mkldnn", "rnn")


def is_half(dtype: torch.dtype) -> bool:
    """Whether a dtype is float16 or bfloat16."""
    return dtype in HALVES
