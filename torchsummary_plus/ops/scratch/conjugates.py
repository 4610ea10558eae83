"""Copies of conjugated matrices: BLAS conjugates a matrix only as it transposes it."""

from __future__ import annotations

from typing import Any


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
