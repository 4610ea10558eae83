"""CUDA: workspaces of cuBLAS."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ....data.capability import Capability
from ....data.units import MIB
from ....live.versions import since
from ..registry import lasting

HANDLES = "aten/src/ATen/cuda/CublasHandlePool.cpp"
INTO_ANOTHER_DTYPE = ("mm.dtype", "addmm.dtype", "bmm.dtype", "baddbmm.dtype")
PRODUCTS = (
    *INTO_ANOTHER_DTYPE,
    *("mm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear"),
    *("_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
)
"""Operators that request a cuBLAS handle, which comes with a workspace."""

ONE_PRODUCT = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "mv", "addmv"),
        *("dot", "vdot", "linear", "_scaled_mm", "_scaled_mm_v2", "_grouped_mm"),
        *INTO_ANOTHER_DTYPE,
    )
)
"""Those that multiply once, at the end, beside everything else that they allocate."""

KEYS = ("cublas", "cublaslt")
"""The names of these workspaces."""

KEPT_UNTIL = "2.15"
"""The first release that frees them after each product. Measured on 2.13 and 2.15; 2.14.1 lacks the variable below."""


def are_workspaces_kept() -> bool:
    """Whether torch keeps the workspaces of cuBLAS, which ``TORCH_CUBLAS_WORKSPACE_CACHE=1`` says on any release.

    Source: ``isCUDABlasWorkspaceCachingEnabled`` in CublasHandlePool.cpp.
    """
    return not since(KEPT_UNTIL) or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def workspace_bytes(capability: Capability) -> int:
    """Return cuBLAS's workspace: ``CUBLAS_WORKSPACE_CONFIG`` (":KiB:count...") if set, else 32 MiB from Hopper on.

    Before Hopper the default is ``:4096:2:16:8``. Source: ``parseChosenWorkspaceSize`` in CublasHandlePool.cpp.

    >>> workspace_bytes((8, 0)), workspace_bytes((9, 0))
    (8519680, 33554432)
    """
    parts = re.findall(r":([0-9]+):([0-9]+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if parts:
        return sum(1024 * int(size) * int(count) for size, count in parts)
    return 32 * MIB if capability[0] >= 9 else 1024 * (2 * 4096 + 8 * 16)


def passing_bytes(capability: Capability) -> int:
    """Return the bytes of the workspace that a product allocates and frees; 0 if torch keeps it."""
    return 0 if are_workspaces_kept() else workspace_bytes(capability)


@lasting("cuda", *(f"aten::{name}" for name in PRODUCTS), source=HANDLES, band=0.0, by_capability=True)
def cublas(capability: Capability, out: Any, *args: Any, **__: Any) -> tuple[tuple[str, int], ...]:
    """One workspace per thread and stream that multiply, since each thread has its own handle."""
    return () if _needs_no_handle(*args[:3]) else (("cublas", workspace_bytes(capability)),)


@lasting("cuda", "aten::bmm", source=HANDLES, band=0.0, by_capability=True)
def cublas_of_a_batch(capability: Capability, out: Any, a: Any, b: Any, **__: Any) -> tuple[tuple[str, int], ...]:
    """As :func:`cublas`, unless Triton multiplies."""
    return () if is_outer_product(a, b) else cublas(capability, out, a, b)


@lasting("cuda", "aten::_scaled_mm", "aten::_scaled_mm_v2", source=HANDLES, band=0.0, by_capability=True)
def cublas_of_a_scaled(
    capability: Capability, out: Any, a: Any, b: Any, *options: Any, **__: Any
) -> tuple[tuple[str, int], ...]:
    """As :func:`cublas`, unless CUTLASS multiplies."""
    return () if is_by_cutlass(capability, *options) else cublas(capability, out, a, b)


def is_by_cutlass(capability: Capability, *options: Any) -> bool:
    """Whether rows and columns have float32 scales of their own, which cuBLAS multiplies on Hopper alone.

    The first four ``options`` hold both scales, each alone or in a list. Source: ``_scaled_rowwise_rowwise`` in
    aten/src/ATen/native/cuda/ScaledBlas.cpp.
    """
    values = [value for option in options[:4] for value in (option if isinstance(option, (list, tuple)) else [option])]
    scales = [value for value in values if isinstance(value, torch.Tensor) and value.dtype is torch.float32]
    return capability[0] != 9 and any(scale.numel() > 1 for scale in scales)


def is_outer_product(a: Any, b: Any) -> bool:
    """Whether torch's Triton kernel multiplies two batches, columns by rows: it reads any strides and needs no handle.

    Source: torch/_native/ops/bmm_outer_product of torch 2.13; other releases may lack it.
    """
    columns_by_rows = a.shape[2] == 1 == b.shape[1] and a.numel() and b.numel() and not a.is_complex()
    return bool(columns_by_rows) and _has_outer_products()


@cache
def _has_outer_products() -> bool:
    """Whether torch has the kernel, and Triton, which a CUDA build on Linux installs and a CPU build is assumed to."""
    kernel = Path(torch.__file__).parent / "_native" / "ops" / "bmm_outer_product"
    has_triton = torch.version.cuda is None or find_spec("triton") is not None
    return kernel.is_dir() and has_triton and os.environ.get("TORCH_DISABLE_NATIVE_JIT", "0") != "1"


def _needs_no_handle(*factors: Any) -> bool:
    """Whether a product has no elements to add up, or sparse factors, which cuSPARSE multiplies with its own handle.

    Source: aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp.
    """
    tensors = [factor for factor in factors if isinstance(factor, torch.Tensor)]
    is_sparse = any(tensor.layout is not torch.strided for tensor in tensors)
    return is_sparse or any(tensor.dim() > 1 and not tensor.numel() for tensor in tensors)


ONE_WORKSPACE_SINCE = "2.13"
"""The first release on which cublasLt shares cuBLAS's workspace, or takes its own alone; measured on 2.11 and 2.13."""


@lasting("cuda", "aten::addmm", "aten::_addmm_activation", source=HANDLES, band=0.0, by_capability=True)
def cublas_with_bias(
    capability: Capability, out: Any, bias: Any, a: Any, b: Any, *, beta: Any = 1, **_: Any
) -> tuple[tuple[str, int], ...]:
    """A bias for each column is added by cublasLt, with a workspace of its own before torch 2.13 and from 2.15 on.

    Source: ``isInputCompliesAddmmCudaLt`` in aten/src/ATen/native/cuda/Blas.cpp.
    """
    own = () if _needs_no_handle(a, b) else (("cublas", workspace_bytes(capability)),)
    is_row = bias.shape[-1:] == out.shape[-1:] and bias.numel() == out.shape[-1] and bias.is_contiguous()
    if not own or _is_shared() or not is_row or beta != 1 or min(b.shape) <= 1:
        return own
    by_lt = (("cublaslt", 1024 * int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", 1024))),)
    return by_lt if since(ONE_WORKSPACE_SINCE) else (*own, *by_lt)


def _is_shared() -> bool:
    """Whether cublasLt uses the kept workspace of cuBLAS."""
    usual = "1" if since(ONE_WORKSPACE_SINCE) else "0"
    return are_workspaces_kept() and os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", usual) == "1"
