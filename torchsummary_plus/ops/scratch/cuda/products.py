"""CUDA: copies of matrices that cuBLAS cannot read in place, products of rows with scales of their own, and of groups.

Source: aten/src/ATen/native/cuda/cuBlasCommonArgs.h, ``prepare_matrix_for_cublas``, and Blas.cpp,
``prepare_batch_matrix_for_cublas``; GroupedBlas.cpp, ``_grouped_mm_cuda``, and for the one kernel of CUTLASS that
Hopper runs GroupMM.cu and ScaledGroupMM.cu; ../GroupedMMUtils.h, ``_grouped_mm_fallback``, for other GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ....data.capability import Capability
from ....data.rounding import round_up
from ...shapes.registry import is_dense
from ..registry import Alloc, AtMost, Course, Result, lasting, scratch
from ..sizes import nbytes
from .blas import is_by_cutlass, is_outer_product, workspace_bytes
from .chips import chip_of

SOURCE = "aten/src/ATen/native/cuda/cuBlasCommonArgs.h and Blas.cpp"


@scratch("cuda", "aten::mm", "aten::mm.dtype", source=SOURCE, band=0.0)
def product(out: Any, a: Any, b: Any, *_: Any, **__: Any) -> Course:
    """Copies of unreadable operands of a matrix product."""
    return _copies(a, b, is_readable=_is_multiplied_in_place)


@scratch("cuda", "aten::addmm", "aten::addmm.dtype", "aten::_addmm_activation", source=SOURCE, band=0.0)
def added_product(out: Any, added: Any, a: Any, b: Any, *_: Any, **__: Any) -> Course:
    """Copies of unreadable operands of a matrix product with an addend."""
    return _copies(a, b, is_readable=_is_multiplied_in_place)


@scratch("cuda", "aten::bmm", "aten::bmm.dtype", source=SOURCE, band=0.0)
def batch_product(out: Any, a: Any, b: Any, *_: Any, **__: Any) -> Course:
    """Copies of unreadable operands of a batched product, which Triton's outer products read in place."""
    return () if is_outer_product(a, b) else _copies(a, b, is_readable=partial(_is_batch_multiplied_in_place, out))


@scratch("cuda", "aten::baddbmm", "aten::baddbmm.dtype", source=SOURCE, band=0.0)
def added_batch_product(out: Any, added: Any, a: Any, b: Any, *_: Any, **__: Any) -> Course:
    """Copies of unreadable operands of a batched product with an addend."""
    return _copies(a, b, is_readable=partial(_is_batch_multiplied_in_place, out))


@scratch("cuda", "aten::mv", source="aten/src/ATen/native/Blas.cpp, mv", band=0.0)
def by_vector(out: Any, matrix: Any, vector: Any) -> Course:
    """Copies of an expanded vector, and of a matrix whose rows and columns are both apart."""
    return _by_vector(matrix, vector)


@scratch("cuda", "aten::addmv", source="aten/src/ATen/native/Blas.cpp, addmv_out", band=0.0)
def added_by_vector(out: Any, added: Any, matrix: Any, vector: Any, *_: Any, **__: Any) -> Course:
    """As :func:`by_vector`."""
    return _by_vector(matrix, vector)


ROWS = "aten/src/ATen/native/cuda/RowwiseScaledMM.cu; cutlass/gemm/threadblock/threadblock_swizzle_streamk.h"
TILE = 4 * 128 * 128
"""Bytes of the largest tile of sums that a block hands over to another one."""


@scratch("cuda", "aten::_scaled_mm", "aten::_scaled_mm_v2", source=ROWS, band=0.0, by_capability=True)
def scaled_product(capability: Capability, out: Any, a: Any, b: Any, *options: Any, **__: Any) -> Course | AtMost:
    """CUTLASS's tiles, which depend on the blocks that a multiprocessor has room for, at most two."""
    is_bounded = is_by_cutlass(capability, *options) and a.numel() and b.numel()
    return AtMost(2 * chip_of(capability).multiprocessors * TILE) if is_bounded else ()


def _by_vector(matrix: Any, vector: Any) -> Course:
    if not matrix.numel():
        return ()
    copies = () if vector.stride(0) or vector.numel() == 1 else (Alloc(nbytes(vector)),)
    return *copies, *_copies(matrix, is_readable=lambda read: 1 in read.stride() or 1 in read.shape)


def _copies(*tensors: Any, is_readable: Callable[[Any], bool]) -> Course:
    if not all(tensor.numel() for tensor in tensors):
        return ()
    return tuple(Alloc(nbytes(t)) for t in tensors if not is_readable(t))


def _is_readable(matrix: Any) -> bool:
    """Whether a matrix is dense, or its rows or columns are contiguous."""
    rows, columns = matrix.shape
    down, along = matrix.stride()
    if is_dense(matrix):
        return True
    return bool((down == 1 and along >= max(1, rows)) or (along == 1 and down >= max(1, columns)))


def _is_multiplied_in_place(matrix: Any) -> bool:
    """Whether a matrix is readable; a conjugated one by its columns, as cuBLAS conjugates only what it transposes."""
    has_rows = matrix.is_contiguous() if is_dense(matrix) else matrix.stride(1) == 1
    return _is_readable(matrix) and not (matrix.is_conj() and has_rows)


def _is_batch_multiplied_in_place(out: Any, matrices: Any) -> bool:
    """As :func:`_is_multiplied_in_place`, for a batch."""
    return _is_readable_batch(matrices) and not is_resolved(matrices, out)


def _is_readable_batch(matrices: Any) -> bool:
    """Whether a batch's matrices are readable, wherever they lie; contiguous ones need non-zero strides."""
    _, rows, columns = matrices.shape
    _, down, along = matrices.stride()
    if (down == 1 and along >= max(1, rows)) or (along == 1 and down >= max(1, columns)):
        return True
    return bool(matrices.is_contiguous()) and down != 0 and along != 0


GROUPED = "aten/src/ATen/native/cuda/GroupedBlas.cpp, GroupMM.cu and ScaledGroupMM.cu; GroupedMMUtils.h"
HOPPER, BLACKWELL = (9, 0), (10, 0)
"""The GPUs whose groups one kernel multiplies: measured, and assumed to need at most a few times as much."""
POINTER, STRIDES, SIZES = 8, 3 * 8, 3 * 4
"""Bytes per group of a tensor's address, of the strides of both factors and the result, and of the product's sizes."""
MAPS = 4 * 128
"""Bytes per multiprocessor of CUTLASS's descriptors of both factors, the addend and the result."""


@scratch("cuda", "aten::_grouped_mm", source=GROUPED, band=0.0, by_capability=True)
def grouped(capability: Capability, out: Any, a: Any, b: Any, offs: Any = None, *_: Any, **__: Any) -> Course | AtMost:
    """In one kernel, what :func:`_of_kernel` says; otherwise one product after another into the result."""
    return _of_kernel(capability, a, b, offs, tensors=3) if _is_one_kernel(capability, a, b) else ()


@scratch(
    "cuda", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2", source=GROUPED, band=0.0, by_capability=True
)
def scaled(
    capability: Capability, out: Any, a: Any, b: Any, *others: Any, offs: Any = None, **_: Any
) -> Course | AtMost:
    """As :func:`grouped` in one kernel, with the addresses of two scales."""
    given = next((value for value in others if isinstance(value, torch.Tensor) and value.dtype is torch.int32), offs)
    return _of_kernel(capability, a, b, given, tensors=5)


def _is_one_kernel(capability: Capability, a: Any, b: Any) -> bool:
    return capability in (HOPPER, BLACKWELL) and a.dtype is b.dtype is torch.bfloat16


def _of_kernel(capability: Capability, a: Any, b: Any, offs: Any, tensors: int) -> Course | AtMost:
    """Return the kernel's arguments for each group, then descriptors for each multiprocessor.

    Two addresses of a tensor are aligned together.
    """
    groups = next((len(factor) for factor in (a, b) if factor.dim() == 3), 0) or len(offs)
    arguments = tensors * POINTER * round_up(groups, 2) + (STRIDES + SIZES) * groups
    course = Result(0), Alloc(arguments), Alloc(MAPS * chip_of(capability).multiprocessors)
    return course if capability == HOPPER else AtMost(3 * course[2].nbytes, course)


@lasting("cuda", "aten::_grouped_mm", source=GROUPED, band=0.0, by_capability=True)
def cublas_of_groups(
    capability: Capability, out: Any, a: Any, b: Any, offs: Any = None, *_: Any, **__: Any
) -> tuple[tuple[str, int], ...]:
    """The workspace of cuBLAS where it multiplies one batch, or one group after another."""
    is_batch = a.numel() and b.numel() and not _is_one_kernel(capability, a, b)
    return (("cublas", workspace_bytes(capability)),) if is_batch else ()


def is_resolved(matrix: Any, result: Any) -> bool:
    """Whether a product copies a conjugated matrix, the last two axes, because BLAS does not transpose it.

    Sources: ``addmm_impl_cpu_`` in aten/src/ATen/native/LinearAlgebra.cpp, ``prepare_batch_matrix_for_cublas`` in
    aten/src/ATen/native/cuda/Blas.cpp.
    """
    if not matrix.is_conj():
        return False
    along, across = (-1, -2) if _has_rows(result) else (-2, -1)
    return bool(matrix.stride(along) == 1 and matrix.stride(across) >= max(1, matrix.shape[along]))


def _has_rows(result: Any) -> bool:
    """Whether BLAS writes a result's rows, which it sees as the columns of the transposed one."""
    rows, columns = result.shape[-2:]
    down, across = result.stride()[-2:]
    return not (down == 1 and (columns == 1 or across >= max(1, rows)))
