"""What torch and oneDNN take this processor for: which instructions they may use, and the caches they reckon with."""

from __future__ import annotations

import os
from functools import cache

import torch

from ..live import compat

_NARROW = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")
_WITHOUT_BF16 = (*_NARROW, "AVX512_CORE", "AVX512_CORE_VNNI")
_WITHOUT_FP16 = (*_WITHOUT_BF16, "AVX512_CORE_BF16")
_WITHOUT_TILES = (*_WITHOUT_FP16, "AVX512_CORE_FP16", "AVX10_1_512")
_WITHOUT_FP16_TILES = (*_WITHOUT_TILES, "AVX512_CORE_AMX", "AVX10_1_512_AMX")


def _limit() -> str:
    """The instruction set that the user keeps oneDNN to; "" where there is no limit."""
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        if name in os.environ:
            return os.environ[name].upper()
    return ""


@cache
def has_avx512() -> bool:
    """Whether oneDNN may use AVX-512; torch's own kernels are limited by another variable, ``ATEN_CPU_CAPABILITY``."""
    return compat.has_avx512() and _limit() not in _NARROW


@cache
def has_avx512_bf16() -> bool:
    """Whether oneDNN may use AVX-512's instructions for bfloat16."""
    return has_avx512() and compat.has_avx512_bf16() and _limit() not in _WITHOUT_BF16


@cache
def has_avx512_fp16() -> bool:
    """Whether oneDNN may use AVX-512's instructions for float16."""
    return has_avx512_bf16() and _limit() not in _WITHOUT_FP16 and multiplies(torch.float16)


@cache
def has_tiles() -> bool:
    """Whether oneDNN may use the matrix tiles (AMX), which take bfloat16."""
    return has_avx512() and compat.has_amx_tiles() and _limit() not in _WITHOUT_TILES


@cache
def has_fp16_tiles() -> bool:
    """Whether these tiles take float16 too."""
    return has_tiles() and compat.has_amx_fp16() and _limit() not in _WITHOUT_FP16_TILES


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN takes matrices and images of a dtype of half precision at all, by what it says itself.

    Source: ideep's ``has_bf16_type_support`` and ``has_fp16_type_support``.
    """
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


@cache
def second_cache() -> int:
    """Bytes of a core's second-level cache; by oneDNN's guess (``platform.cpp``) where torch does not tell."""
    return int(torch.cpu.get_capabilities().get("l2_cache_size", 0)) or 512_000


def is_half(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of half precision."""
    return dtype in (torch.bfloat16, torch.float16)
