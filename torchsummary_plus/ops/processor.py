"""CPU features as torch and oneDNN see them: instruction sets and the cache sizes they assume."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import torch

from ..live import compat
from .dtypes import HALVES

_WITHOUT_AVX2 = ("SSE41", "AVX")
_NARROW = (*_WITHOUT_AVX2, "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")
_WITHOUT_BF16 = (*_NARROW, "AVX512_CORE", "AVX512_CORE_VNNI")
_WITHOUT_FP16 = (*_WITHOUT_BF16, "AVX512_CORE_BF16")
_WITHOUT_TILES = (*_WITHOUT_FP16, "AVX512_CORE_FP16", "AVX10_1_512")
_WITHOUT_FP16_TILES = (*_WITHOUT_TILES, "AVX512_CORE_AMX", "AVX10_1_512_AMX")


def _limit() -> str:
    """Return the instruction set that the user limits oneDNN to, or ""."""
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        if name in os.environ:
            return os.environ[name].upper()
    return ""


@cache
def is_measured() -> bool:
    """Whether rules for oneDNN, MKL and LAPACK were measured on this kind of processor and build: AVX2 or more, MKL.

    oneDNN has other kernels without AVX2. Builds for ARM call other libraries: Accelerate on a Mac, the Arm Compute
    Library and OpenBLAS elsewhere.
    """
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and torch.backends.mkl.is_available() and compat.has_avx2() and _limit() not in _WITHOUT_AVX2


@cache
def has_avx512() -> bool:
    """Whether oneDNN may use AVX-512; ``ATEN_CPU_CAPABILITY`` limits only torch's own kernels."""
    return compat.has_avx512() and _limit() not in _NARROW


@cache
def has_avx512_bf16() -> bool:
    """Whether oneDNN may use AVX-512's bfloat16 instructions."""
    return has_avx512() and compat.has_avx512_bf16() and _limit() not in _WITHOUT_BF16


@cache
def has_avx512_fp16() -> bool:
    """Whether oneDNN may use AVX-512's float16 instructions."""
    return has_avx512_bf16() and _limit() not in _WITHOUT_FP16 and multiplies(torch.float16)


@cache
def has_tiles() -> bool:
    """Whether oneDNN may use matrix tiles (AMX) for bfloat16."""
    return has_avx512() and compat.has_amx_tiles() and _limit() not in _WITHOUT_TILES


@cache
def has_fp16_tiles() -> bool:
    """Whether oneDNN may use matrix tiles (AMX) for float16."""
    return has_tiles() and compat.has_amx_fp16() and _limit() not in _WITHOUT_FP16_TILES


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


def float32_precision() -> str:
    """Return the precision in which torch is told to multiply float32 matrices: "bf16" and "tf32" are lower.

    Source: aten/src/ATen/native/mkldnn/Matmul.cpp, ``use_mkldnn_bf32_matmul`` and ``use_mkldnn_tf32_matmul``, which
    needs AMX for float16; before torch 2.9, ``torch.set_float32_matmul_precision("medium")`` is the only way.
    """
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is not None:
        return str(matmul.fp32_precision)
    return "bf16" if torch.get_float32_matmul_precision() == "medium" else "ieee"


def lowers_float32() -> bool:
    """Whether oneDNN may multiply float32 matrices in a lower precision here."""
    precision = float32_precision()
    return precision == "bf16" or (precision == "tf32" and has_fp16_tiles())


@cache
def first_cache() -> int:
    """Return the bytes of a core's L1 data cache, or oneDNN's default; see :func:`second_cache`."""
    return _cache_size("l1d_cache_size", 0) or 32_000


@cache
def second_cache() -> int:
    """Return the bytes of a core's L2 cache; oneDNN's own default (``platform.cpp``) if nothing reports it.

    torch reports it in releases that have ``torch.cpu.get_capabilities``; Linux does for the others.
    """
    return _cache_size("l2_cache_size", 2) or 512_000


def _cache_size(name: str, index: int) -> int:
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    known = _cache_of_linux(index) if capabilities is None else capabilities().get(name, 0)
    return int(known)


def _cache_of_linux(index: int) -> int:
    """Return the bytes of one of the first core's caches, such as "2048K"; 0 on other systems."""
    try:
        return int((_CACHES / f"index{index}/size").read_text(encoding="ascii").strip().removesuffix("K")) << 10
    except (OSError, ValueError):
        return 0


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def is_half(dtype: torch.dtype) -> bool:
    """Whether a dtype is float16 or bfloat16."""
    return dtype in HALVES
