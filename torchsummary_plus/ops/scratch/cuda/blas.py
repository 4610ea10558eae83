"""CUDA: cuBLAS's workspaces, copies of matrices that it cannot read in place, and products of groups.

Source: aten/src/ATen/native/cuda/cuBlasCommonArgs.h, ``prepare_matrix_for_cublas``, and Blas.cpp,
``prepare_batch_matrix_for_cublas``; GroupedBlas.cpp, ``_grouped_mm_cuda``, and for the one kernel of CUTLASS that
Hopper runs GroupMM.cu; ../GroupedMMUtils.h, ``_grouped_mm_fallback``, for other GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ....data.capability import Capability, Chip
from ....data.units import MIB, round_up
from ....live.versions import since
from ...shapes.registry import is_dense
from ..registry import Alloc, AtMost, Course, Result, lasting, scratch

HANDLES = "aten/src/ATen/cuda/CublasHandlePool.cpp"
SOURCE = "aten/src/ATen/native/cuda/cuBlasCommonArgs.h and Blas.cpp"
INTO_ANOTHER_DTYPE = ("mm.dtype", "addmm.dtype", "bmm.dtype", "baddbmm.dtype")
TWO_MATRICES = ("mm", "mm.dtype", "addmm", "addmm.dtype", "_addmm_activation")
TWO_BATCHES = ("bmm", "bmm.dtype", "baddbmm", "baddbmm.dtype")
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
        *("dot", "vdot", "linear", "_grouped_mm"),
        *INTO_ANOTHER_DTYPE,
    )
)
"""Those that multiply once, at the end, beside everything else that they allocate."""

KEYS = ("cublas", "cublaslt")
"""The names of these workspaces."""
Kept = tuple[tuple[str, int], ...]
"""The names and bytes of lasting workspaces."""

KEPT_UNTIL = "2.15"
"""The first release that frees them after each product. Measured on 2.13 and 2.15; 2.14.1 lacks the variable below."""


def are_workspaces_kept() -> bool:
    """Whether torch keeps the workspaces of cuBLAS, which ``TORCH_CUBLAS_WORKSPACE_CACHE=1`` says on any release.

    Source: ``isCUDABlasWorkspaceCachingEnabled`` in CublasHandlePool.cpp.
    """
    return not since(KEPT_UNTIL) or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def workspace_bytes(chip: Capability) -> int:
    """Return cuBLAS's workspace: ``CUBLAS_WORKSPACE_CONFIG`` (":KiB:count...") if set, else 32 MiB from Hopper on.

    Before Hopper the default is ``:4096:2:16:8``. Source: ``parseChosenWorkspaceSize`` in CublasHandlePool.cpp.

    >>> workspace_bytes((8, 0)), workspace_bytes((9, 0))
    (8519680, 33554432)
    """
    parts = re.findall(r":([0-9]+):([0-9]+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if parts:
        return sum(1024 * int(size) * int(count) for size, count in parts)
    return 32 * MIB if chip[0] >= 9 else 1024 * (2 * 4096 + 8 * 16)


def passing_bytes(chip: Capability) -> int:
    """Return the bytes of the workspace that a product allocates and frees; 0 if torch keeps it."""
    return 0 if are_workspaces_kept() else workspace_bytes(chip)


@lasting("cuda", *(f"aten::{name}" for name in PRODUCTS), source=HANDLES)
def cublas(chip: Capability, out: Any, *args: Any, **__: Any) -> Kept:
    """One workspace per thread and stream that multiply, since each thread has its own handle."""
    return () if _needs_no_handle(*args[:3]) else (("cublas", workspace_bytes(chip)),)


@lasting("cuda", "aten::bmm", source=HANDLES)
def cublas_of_a_batch(chip: Capability, out: Any, a: Any, b: Any, **__: Any) -> Kept:
    """As :func:`cublas`, unless Triton multiplies."""
    return () if is_outer_product(a, b) else cublas(chip, out, a, b)


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
    tensors = _tensors(factors)
    is_sparse = any(tensor.layout is not torch.strided for tensor in tensors)
    return is_sparse or any(tensor.dim() > 1 and not tensor.numel() for tensor in tensors)


ONE_WORKSPACE_SINCE = "2.13"
"""The first release on which cublasLt shares cuBLAS's workspace, or takes its own alone; measured on 2.11 and 2.13."""


@lasting("cuda", "aten::addmm", "aten::_addmm_activation", source=HANDLES)
def cublas_with_bias(chip: Capability, out: Any, bias: Any, a: Any, b: Any, *, beta: Any = 1, **_: Any) -> Kept:
    """A bias for each column is added by cublasLt, with a workspace of its own before torch 2.13 and from 2.15 on.

    Source: ``isInputCompliesAddmmCudaLt`` in aten/src/ATen/native/cuda/Blas.cpp.
    """
    own = () if _needs_no_handle(a, b) else (("cublas", workspace_bytes(chip)),)
    is_row = bias.shape[-1:] == out.shape[-1:] and bias.numel() == out.shape[-1] and bias.is_contiguous()
    usual = "1" if since(ONE_WORKSPACE_SINCE) else "0"
    is_shared = are_workspaces_kept() and os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", usual) == "1"
    if not own or is_shared or not is_row or beta != 1 or min(b.shape) <= 1:
        return own
    by_lt = (("cublaslt", 1024 * int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", 1024))),)
    return by_lt if since(ONE_WORKSPACE_SINCE) else (*own, *by_lt)


@scratch("cuda", *(f"aten::{name}" for name in TWO_MATRICES), source=SOURCE)
def product(out: Any, *operands: Any, **_: Any) -> Course:
    """Copies of unreadable factors of a matrix product, the last two matrices, which an addend may precede."""
    return _copies(*_tensors(operands)[-2:], is_readable=_is_multiplied_in_place)


@scratch("cuda", *(f"aten::{name}" for name in TWO_BATCHES), source=SOURCE)
def batch_product(out: Any, *operands: Any, **_: Any) -> Course:
    """Copies of unreadable factors of a batched product, which Triton's outer products read in place."""
    *added, a, b = _tensors(operands)
    if not added and is_outer_product(a, b):
        return ()
    return _copies(a, b, is_readable=partial(_is_batch_multiplied_in_place, out))


@scratch("cuda", "aten::mv", "aten::addmv", source="aten/src/ATen/native/Blas.cpp, mv and addmv_out")
def by_vector(out: Any, *operands: Any, **_: Any) -> Course:
    """Copies of an expanded vector, and of a matrix whose rows and columns are both apart."""
    matrix, vector = _tensors(operands)[-2:]
    if not matrix.numel():
        return ()
    copies = () if vector.stride(0) or vector.numel() == 1 else (Alloc(vector.nbytes),)
    return *copies, *_copies(matrix, is_readable=lambda read: 1 in read.stride() or 1 in read.shape)


def _tensors(operands: tuple[Any, ...]) -> list[torch.Tensor]:
    return [operand for operand in operands if isinstance(operand, torch.Tensor)]


def _copies(*tensors: Any, is_readable: Callable[[Any], bool]) -> Course:
    if not all(tensor.numel() for tensor in tensors):
        return ()
    return tuple(Alloc(t.nbytes) for t in tensors if not is_readable(t))


def _is_multiplied_in_place(matrix: Any) -> bool:
    """Whether a matrix is dense, or its rows or columns are contiguous.

    A conjugated one needs its columns, as cuBLAS conjugates only what it transposes.
    """
    rows, columns = matrix.shape
    down, along = matrix.stride()
    if is_dense(matrix):
        return not (matrix.is_conj() and matrix.is_contiguous())
    is_readable = (down == 1 and along >= max(1, rows)) or (along == 1 and down >= max(1, columns))
    return is_readable and not (matrix.is_conj() and along == 1)


def _is_batch_multiplied_in_place(out: Any, matrices: Any) -> bool:
    """Whether a batch's matrices are readable, wherever they lie; contiguous ones need non-zero strides.

    A conjugated batch needs the axis that cuBLAS, which sees a result's rows as columns, transposes to conjugate.
    """
    _, rows, columns = matrices.shape
    _, down, along = matrices.stride()
    has_columns = down == 1 and along >= max(1, rows)
    has_rows = along == 1 and down >= max(1, columns)
    if not (has_columns or has_rows or (matrices.is_contiguous() and down != 0 and along != 0)):
        return False
    out_down, out_along = out.stride()[-2:]
    is_by_columns = out_down == 1 and (out.shape[-1] == 1 or out_along >= max(1, out.shape[-2]))
    return not (matrices.is_conj() and (has_columns if is_by_columns else has_rows))


GROUPED = "aten/src/ATen/native/cuda/GroupedBlas.cpp, GroupMM.cu; GroupedMMUtils.h"
HOPPER, BLACKWELL = (9, 0), (10, 0)
"""The GPUs whose groups one kernel multiplies: measured, and assumed to need at most a few times as much."""
POINTER, STRIDES, SIZES = 8, 3 * 8, 3 * 4
"""Bytes per group of a tensor's address, of the strides of both factors and the result, and of the product's sizes."""
MAPS = 4 * 128
"""Bytes per multiprocessor of CUTLASS's descriptors of both factors, the addend and the result."""


@scratch("cuda", "aten::_grouped_mm", source=GROUPED)
def grouped(chip: Chip, out: Any, a: Any, b: Any, offs: Any = None, *_: Any, **__: Any) -> Course | AtMost:
    """In one kernel, its arguments for each group, then descriptors for each multiprocessor; else product by product.

    Two addresses of a tensor are aligned together.
    """
    if not _is_one_kernel(chip, a, b):
        return ()
    groups = next((len(factor) for factor in (a, b) if factor.dim() == 3), 0) or len(offs)
    arguments = 3 * POINTER * round_up(groups, 2) + (STRIDES + SIZES) * groups
    course = Result(0), Alloc(arguments), Alloc(MAPS * chip.multiprocessors)
    return course if chip == HOPPER else AtMost(3 * course[2].nbytes, course)


def _is_one_kernel(chip: Chip, a: Any, b: Any) -> bool:
    return chip in (HOPPER, BLACKWELL) and a.dtype is b.dtype is torch.bfloat16


@lasting("cuda", "aten::_grouped_mm", source=GROUPED)
def cublas_of_groups(chip: Chip, out: Any, a: Any, b: Any, *_: Any, **__: Any) -> Kept:
    """The workspace of cuBLAS where it multiplies one batch, or one group after another."""
    is_batch = a.numel() and b.numel() and not _is_one_kernel(chip, a, b)
    return (("cublas", workspace_bytes(chip)),) if is_batch else ()
