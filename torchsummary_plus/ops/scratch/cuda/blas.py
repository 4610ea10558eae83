"""CUDA: cuBLAS's workspaces, copies of matrices that it cannot read in place, and products of groups.

Source: aten/src/ATen/native/cuda/cuBlasCommonArgs.h, ``prepare_matrix_for_cublas``, and Blas.cpp,
``prepare_batch_matrix_for_cublas``; GroupedBlas.cpp, ``_grouped_mm_cuda``, and for the one kernel of CUTLASS that
Hopper runs GroupMM.cu; ../GroupedMMUtils.h, ``_grouped_mm_fallback``, for other GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from ....data.capability import Capability, Chip
from ....data.units import MIB, round_up
from ....live.compat import since
from ...shapes.registry import is_dense
from ..registry import UNKNOWN, Alloc, AtMost, Handle, Timeline, scratch

PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "linear", "addbmm"),
        *("mm.dtype", "addmm.dtype", "bmm.dtype", "baddbmm.dtype"),
    )
)
"""Operators that multiply with cuBLAS."""

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


def cublas(chip: Capability, *factors: Any) -> tuple[Handle | Alloc, ...]:
    """Return cuBLAS's workspace, which each thread's handle keeps, or torch frees after each product.

    There is none for a product without elements to add up.
    """
    for factor in _tensors(factors):
        if factor.dim() > 1 and not factor.numel():
            return ()
    nbytes = workspace_bytes(chip)
    return (Handle("cublas", nbytes) if are_workspaces_kept() else Alloc(nbytes),)


def _has_outer_products() -> bool:
    """Whether Triton multiplies two batches, columns by rows: it reads any strides, without a handle.

    Source: torch/_native/ops/bmm_outer_product, since torch 2.13. A CPU build stands for a CUDA build with Triton.
    """
    has_triton = torch.version.cuda is None or find_spec("triton") is not None
    return since("2.13") and has_triton and os.environ.get("TORCH_DISABLE_NATIVE_JIT", "0") != "1"


ONE_WORKSPACE_SINCE = "2.13"
"""The first release on which cublasLt shares cuBLAS's workspace, or takes its own alone; measured on 2.11 and 2.13."""


scratch("cuda", "aten::dot", "aten::vdot", "aten::linear")(lambda chip, out, *operands, **_: cublas(chip, *operands))


@scratch("cuda", "aten::addbmm", "aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd")
def several(chip: Chip, out: Any, *operands: Any, **_: Any) -> Timeline | AtMost:
    """The workspace, beside some of what the operator allocates for several products."""
    timeline = cublas(chip, *operands[:3])
    return timeline if are_workspaces_kept() or not timeline else AtMost(timeline[0].nbytes)


@scratch("cuda", "aten::mm", "aten::mm.dtype", "aten::addmm.dtype")
def product(chip: Chip, out: Any, *operands: Any, **_: Any) -> Timeline | AtMost:
    """Copies of unreadable factors of a matrix product, the last two matrices, which an addend may precede."""
    a, b = _tensors(operands)[-2:]
    if not a.layout is b.layout is torch.strided:  # By cuSPARSE, with a handle of its own: SparseBlasImpl.cpp.
        return UNKNOWN
    return *_copies(a, b, is_readable=_is_multiplied_in_place), *cublas(chip, *operands)


@scratch("cuda", "aten::addmm", "aten::_addmm_activation")
def product_with_bias(chip: Chip, out: Any, bias: Any, a: Any, b: Any, *, beta: Any = 1, **_: Any) -> Timeline | AtMost:
    """A bias for each column is added by cublasLt, with a workspace of its own before torch 2.13 and from 2.15 on.

    Source: ``isInputCompliesAddmmCudaLt`` in aten/src/ATen/native/cuda/Blas.cpp.
    """
    if not a.layout is b.layout is torch.strided:  # By cuSPARSE, with a handle of its own: SparseBlasImpl.cpp.
        return UNKNOWN
    copies, own = _copies(a, b, is_readable=_is_multiplied_in_place), cublas(chip, a, b)
    is_row = bias.shape[-1:] == out.shape[-1:] and bias.numel() == out.shape[-1] and bias.is_contiguous()
    usual = "1" if since(ONE_WORKSPACE_SINCE) else "0"
    is_shared = are_workspaces_kept() and os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", usual) == "1"
    if not own or is_shared or not is_row or beta != 1 or min(b.shape) <= 1:
        return *copies, *own
    nbytes = 1024 * int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", 1024))
    by_lt = Handle("cublaslt", nbytes) if are_workspaces_kept() else Alloc(nbytes)
    return *copies, *(() if since(ONE_WORKSPACE_SINCE) else own), by_lt


@scratch("cuda", "aten::bmm", "aten::bmm.dtype", "aten::baddbmm", "aten::baddbmm.dtype")
def batch_product(chip: Chip, out: Any, *operands: Any, **_: Any) -> Timeline:
    """Copies of unreadable factors of a batched product, which Triton's outer products read in place."""
    *added, a, b = _tensors(operands)
    is_outer = not added and a.shape[2] == 1 == b.shape[1] and a.numel() and b.numel() and not a.is_complex()
    if is_outer and _has_outer_products():
        return ()
    return *_copies(a, b, is_readable=partial(_is_batch_multiplied_in_place, out)), *cublas(chip, *operands)


@scratch("cuda", "aten::mv", "aten::addmv")
def by_vector(chip: Chip, out: Any, *operands: Any, **_: Any) -> Timeline:
    """Copies of an expanded vector, and of a matrix whose rows and columns are both apart."""
    matrix, vector = _tensors(operands)[-2:]
    if not matrix.numel():
        return ()
    copies = () if vector.stride(0) or vector.numel() == 1 else (Alloc(vector.nbytes),)
    read = _copies(matrix, is_readable=lambda read: 1 in read.stride() or 1 in read.shape)
    return *copies, *read, *cublas(chip, *operands)


def _tensors(operands: tuple[Any, ...]) -> list[torch.Tensor]:
    return [operand for operand in operands if isinstance(operand, torch.Tensor)]


def _copies(*tensors: Any, is_readable: Callable[[Any], bool]) -> Timeline:
    if not all(map(torch.Tensor.numel, tensors)):
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


HOPPER, BLACKWELL = (9, 0), (10, 0)
"""The GPUs whose groups one kernel multiplies: measured, and assumed to need at most a few times as much."""
POINTER, STRIDES, SIZES = 8, 3 * 8, 3 * 4
"""Bytes per group of a tensor's address, of the strides of both factors and the result, and of the product's sizes."""
MAPS = 4 * 128
"""Bytes per multiprocessor of CUTLASS's descriptors of both factors, the addend and the result."""


@scratch("cuda", "aten::_grouped_mm")
def grouped(chip: Chip, out: Any, a: Any, b: Any, offs: Any = None, *_: Any, **__: Any) -> Timeline | AtMost:
    """In one kernel, its arguments for each group, then descriptors for each multiprocessor; else by cuBLAS in turn.

    Two addresses of a tensor are aligned together.
    """
    if chip not in (HOPPER, BLACKWELL) or not a.dtype is b.dtype is torch.bfloat16:
        return cublas(chip, a, b)
    groups = next((len(factor) for factor in (a, b) if factor.dim() == 3), 0) or len(offs)
    arguments = 3 * POINTER * round_up(groups, 2) + (STRIDES + SIZES) * groups
    timeline = Alloc(arguments), Alloc(MAPS * chip.multiprocessors)
    return timeline if chip == HOPPER else AtMost(3 * timeline[1].nbytes, timeline)
