"""CUDA: linear algebra that requests a handle of cuBLAS, which comes with its workspace.

Triangular solves and batches of factorizations are cuBLAS's or MAGMA's, whose queue borrows a handle of cuBLAS; single
matrices are cuSOLVER's. What these libraries allocate themselves is unknown without a GPU.
"""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import Any

import torch

from ....data.capability import Capability
from ....live.versions import since
from ..registry import lasting
from .blas import HANDLES, are_workspaces_kept, workspace_bytes

LINALG = f"{HANDLES}; aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp"
Blocks = tuple[tuple[str, int], ...]

BATCHED_QR_ROWS = 256
LARGE_TRIANGLE, FEW_TRIANGLES = 64, 8
"""Rows from which on up to 8 triangular systems are solved one by one."""
TRIANGLES_SINCE = "2.13"
"""The first release that solves for batches with Cholesky's factor by two triangular solves; measured, 2.12 was not."""


FEW_FACTORED_SINCE = "2.15"
"""The first release that leaves few matrices to cuSOLVER and factors large ones block by block; before: MAGMA."""
BLOCKED_ROWS, LEAST_BLOCKED = 256, 4
"""Rows from which on at least four matrices are factored block by block."""
_SINGLE, _DOUBLE = {2: 130, 3: 237}, {2: 67, 3: 224}
LOOPED_FROM = {
    torch.float32: _SINGLE,
    torch.complex64: _SINGLE,
    torch.float64: _DOUBLE,
    torch.complex128: {2: 67, 3: 125, 4: 204, 5: 229, 6: 250},
}
"""Rows from which on so many matrices are factored by cuSOLVER; read off torch 2.15 on the no-op runtime."""


class Way(Enum):
    """How matrices are factored, and how a system with factors and pivots is solved."""

    LOOPED = "by cuSOLVER, one matrix after another"
    BATCHED = "by cuBLAS or MAGMA, all at once"
    BLOCKED = "by torch's kernels and products of blocks, all at once"
    TRIANGULAR = "by two triangular solves"


def way_to_factor(x: Any) -> Way:
    """Return torch's choice (``lu_factor`` in BatchLinearAlgebra.cpp)."""
    matrices, (columns, rows) = matrices_of(x), x.shape[-2:]
    if matrices <= 1:
        return Way.LOOPED
    if not since(FEW_FACTORED_SINCE):
        return Way.BATCHED
    if columns == rows >= BLOCKED_ROWS and matrices >= LEAST_BLOCKED:
        return Way.BLOCKED
    is_looped = columns != rows or (matrices in LOOPED_FROM[x.dtype] and rows >= LOOPED_FROM[x.dtype][matrices])
    return Way.LOOPED if is_looped else Way.BATCHED


def way_to_solve(rows: int, columns: int, matrices: int, adjoint: bool) -> Way:
    """Return torch's choice (``lu_solve_kernel``); ``adjoint`` for a system with the transposed factors."""
    if rows == columns:
        return Way.BATCHED if rows <= 16 else Way.TRIANGULAR
    if rows <= 8:
        return Way.BATCHED
    if rows <= 64:
        if matrices <= 2 and (rows <= 32 or columns <= 64 or adjoint):
            return Way.LOOPED
        return Way.BATCHED if columns <= 8 else Way.TRIANGULAR
    if rows <= 128 and columns <= 2:
        return Way.LOOPED if matrices <= 2 else Way.BATCHED
    return Way.TRIANGULAR


def matrices_of(x: Any) -> int:
    """Return the number of matrices."""
    return int(prod(x.shape[:-2]))


def _taken(capability: Capability, takes: bool) -> Blocks:
    return (("cublas", workspace_bytes(capability)),) if takes else ()


def _is_solved_by_cublas(rows: int, columns: int, matrices: int, adjoint: bool) -> bool:
    """Whether factored systems are solved by cuBLAS instead of cuSOLVER."""
    if not rows * columns * matrices:
        return False
    return way_to_solve(rows, columns, matrices, adjoint) is not Way.LOOPED


def is_adjoint(left: bool = True, adjoint: bool = False) -> bool:
    """Whether a solve with factors solves the transposed system; unknowns on the left are transposed too."""
    return adjoint is left


@lasting("cuda", "aten::triangular_solve", "aten::linalg_solve_triangular", source=LINALG, band=0.0, by_capability=True)
def triangular(capability: Capability, out: Any, first: Any, second: Any, *_: Any, **__: Any) -> Blocks:
    """Also without right-hand sides."""
    return _taken(capability, _asks_for_a_handle(second if isinstance(out, (tuple, list)) else first))


def _asks_for_a_handle(matrix: Any) -> bool:
    """Whether a triangular solve does; where workspaces are kept, not for no large matrices, one after another."""
    return bool(matrices_of(matrix)) or int(matrix.shape[-1]) < LARGE_TRIANGLE or not are_workspaces_kept()


FACTORED = ("linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet")


@lasting("cuda", *(f"aten::{name}" for name in FACTORED), source=LINALG, band=0.0, by_capability=True)
def lu_factor(capability: Capability, out: Any, x: Any, *_: Any, **__: Any) -> Blocks:
    """Return cuBLAS's workspace, which factoring a batch requests."""
    return _taken(capability, x.numel() and way_to_factor(x) is not Way.LOOPED)


@lasting("cuda", "aten::linalg_lu_solve", source=LINALG, band=0.0, by_capability=True)
def lu_solve(capability: Capability, out: Any, factors: Any, pivots: Any, b: Any, **how: bool) -> Blocks:
    """Return cuBLAS's workspace, unless cuSOLVER solves."""
    rows, matrices = int(factors.shape[-1]), matrices_of(out)
    return _taken(capability, _is_solved_by_cublas(rows, columns_of(out, rows, matrices), matrices, is_adjoint(**how)))


@lasting("cuda", "aten::_linalg_solve_ex", source=LINALG, band=0.0, by_capability=True)
def solve(capability: Capability, out: Any, x: Any, b: Any, *, left: bool = True, **_: Any) -> Blocks:
    """Return cuBLAS's workspace, for the factors of a batch or for the solutions."""
    rows, matrices = int(x.shape[-1]), matrices_of(x)
    solved = _is_solved_by_cublas(rows, columns_of(out[0], rows, matrices), matrices, is_adjoint(left))
    return _taken(capability, (x.numel() and way_to_factor(x) is not Way.LOOPED) or solved)


@lasting("cuda", "aten::linalg_inv_ex", source=LINALG, band=0.0, by_capability=True)
def inverse(capability: Capability, out: Any, x: Any, **_: Any) -> Blocks:
    """Return cuBLAS's workspace: an inverse is a solve for the identity."""
    return _taken(capability, x.numel())


def columns_of(b: Any, rows: int, matrices: int) -> int:
    """Return the right-hand sides of each system, which stand on the right or, transposed, on the left."""
    return int(b.numel()) // max(1, rows * matrices)


@lasting("cuda", "aten::cholesky_solve", source=LINALG, band=0.0, by_capability=True)
def cholesky_solve(capability: Capability, out: Any, b: Any, factor: Any, *_: Any, **__: Any) -> Blocks:
    """Return cuBLAS's workspace, which solving a batch requests."""
    return _taken(capability, matrices_of(out) > 1 or (is_solved_twice(factor) and _asks_for_a_handle(factor)))


@lasting("cuda", "aten::cholesky_inverse", source=LINALG, band=0.0, by_capability=True)
def cholesky_inverse(capability: Capability, out: Any, factor: Any, *_: Any, **__: Any) -> Blocks:
    """Return cuBLAS's workspace, which inverting a batch requests."""
    return _taken(capability, matrices_of(factor) > 1 or (is_solved_twice(factor) and _asks_for_a_handle(factor)))


def is_solved_twice(factor: Any) -> bool:
    """Whether two triangular solves solve for a batch with Cholesky's factor, also for an empty one."""
    return since(TRIANGLES_SINCE) and matrices_of(factor) != 1


@lasting("cuda", "aten::linalg_qr", "aten::geqrf", source=LINALG, band=0.0, by_capability=True)
def qr(capability: Capability, out: Any, x: Any, *_: Any, **__: Any) -> Blocks:
    """Batches of small matrices."""
    return _taken(capability, x.numel() and is_factored_by_cublas(x))


def is_factored_by_cublas(x: Any) -> bool:
    """Whether cuBLAS factors matrices into reflections, as it does large batches of small ones (``geqrf_kernel``)."""
    rows = int(x.shape[-2])
    return rows <= BATCHED_QR_ROWS and matrices_of(x) >= max(2, rows // 16)


@lasting("cuda", "aten::linalg_lstsq", source=LINALG, band=0.0, by_capability=True)
def least_squares(capability: Capability, out: Any, x: Any, b: Any, *_: Any, **__: Any) -> Blocks:
    """The last step is a triangular solve."""
    return _taken(capability, b.numel())


@lasting("cuda", "aten::linalg_pinv.atol_rtol_tensor", source=LINALG, band=0.0, by_capability=True)
def pseudo_inverse(capability: Capability, out: Any, x: Any, *_: Any, **__: Any) -> Blocks:
    """A product of the singular vectors (``linalg_pinv`` in aten/src/ATen/native/LinearAlgebra.cpp)."""
    return _taken(capability, x.numel())
