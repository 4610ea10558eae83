"""Scratch memory of linear algebra and distances on the CPU: factors, pivots and LAPACK's workspaces.

LAPACK is queried for its workspace; the sizes here are Intel MKL's answers, plus one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ....live.versions import since
from ..registry import ALL_RESULTS, AtMost, Phase, reserve, scratch
from ..sizes import INT64, NATIVE, columns_first, copied, elements, itemsize, nbytes, scalar
from .general import triangle_of
from .transposing import columns_block, turned_block

LAPACK = f"{NATIVE}BatchLinearAlgebra.cpp and BatchLinearAlgebraKernel.cpp"
INT32 = 4


def _matrices(x: Any) -> int:
    """Return the number of matrices in a batch."""
    return int(prod(x.shape[:-2]))


def _pivots(x: Any) -> int:
    """Return the number of pivots of a batch of factored matrices."""
    return _matrices(x) * int(min(x.shape[-2:]))


def _pivots_checked(x: Any) -> int:
    """Pivots compared with a number: one boolean each, and the number as a tensor of two dtypes."""
    return _pivots(x) + INT64 + INT32


EXPONENTIAL = f"{NATIVE}LinearAlgebra.cpp, mexp_impl and compute_T18"
LEAST_POWERS, POWERS = 4, 12
"""Matrices that the Taylor polynomials of the lowest and the highest degree hold, of one matrix."""
POWERS_OF_BATCH, NORMS = 10, 3
"""Matrices that a batch, sorted by norms, holds for each of its own unless the norms differ; and numbers."""


@scratch("cpu", "aten::linalg_matrix_exp", source=EXPONENTIAL, band=0.0)
def _exponential(out: Any, x: Any) -> int | tuple[Phase, ...]:
    """Powers of the matrices, as many as their norms demand; of one matrix the highest degree is assumed."""
    side, count = int(x.shape[-1]), _matrices(x)
    number = itemsize(x) // (2 if x.is_complex() else 1)
    if side < 2 or not count:
        return 0
    if count > 1:
        powers = POWERS_OF_BATCH * nbytes(x) + NORMS * number * count
        return (Phase(1, powers, POWERS / POWERS_OF_BATCH - 1),)
    return (Phase(1, POWERS * nbytes(x), 1 - LEAST_POWERS / POWERS),)


@scratch("cpu", "aten::linalg_inv_ex", source=LAPACK, band=0.0)
def _inverse(out: Any, x: Any, *_: Any, **__: Any) -> int:
    """The factors and pivots; the pivots are checked when the system is solved."""
    return nbytes(x) + INT32 * _pivots(x) + _pivots_checked(x)


@scratch("cpu", "aten::linalg_lu_solve", source=LAPACK, band=0.0)
def _solve_factored(out: Any, factors: Any, pivots: Any, *_: Any, **__: Any) -> int:
    """Copies of the pivots and, column-major, of the factors; the pivots, checked; and each solution's factors."""
    copy = columns_first(factors)
    spread = _matrices(factors) + _matrices(out) if _matrices(out) > _matrices(factors) else 0
    block = columns_block(factors) if copy else 0
    return copied(pivots) + copy + max(_pivots_checked(factors), block, INT64 * spread)


@scratch("cpu", "aten::linalg_solve_triangular", source=f"{NATIVE}BatchLinearAlgebra.cpp", band=0.0)
def _triangular(out: Any, triangle: Any, *_: Any, **__: Any) -> int:
    """A copy of triangles that are repeated for the batch, or contiguous in neither rows nor columns."""
    is_spread = _matrices(triangle) != _matrices(out)
    is_ready = triangle.is_contiguous() or not columns_first(triangle)
    return 0 if is_ready and not is_spread else _matrices(out) * int(prod(triangle.shape[-2:])) * itemsize(triangle)


@scratch("cpu", "aten::_linalg_solve_ex", source=LAPACK, band=0.0)
def _solve(out: Any, x: Any, *others: Any, **__: Any) -> int:
    """The pivots, checked; a solution that is a vector is computed as a matrix first (``linalg_lu_solve_out``)."""
    solution = out if isinstance(out, torch.Tensor) else out[0]
    return _pivots_checked(x) + (nbytes(solution) if solution.dim() < x.dim() else 0)


@scratch("cpu", "aten::_linalg_det", source=f"{NATIVE}LinearAlgebra.cpp, lu_det_P", band=0.0)
def _determinant(out: Any, x: Any) -> int:
    """LAPACK's info and the product of the diagonal, besides the sign."""
    return _matrices(x) * (INT32 + itemsize(x)) + _sign(x)


@scratch("cpu", "aten::_linalg_slogdet", source=f"{NATIVE}LinearAlgebra.cpp, lu_det_P", band=0.0)
def _log_determinant(out: Any, x: Any) -> int:
    """The sign, then multiplied with the diagonal's signs."""
    diagonal = _matrices(x) * (INT64 + 2 * itemsize(x)) + _pivots(x) * itemsize(x)
    return INT32 * _matrices(x) + max(_sign(x), diagonal)


def _sign(x: Any) -> int:
    """Count the row exchanges: positions compared with the pivots, and the differences summed as integers."""
    return INT32 * int(x.shape[-1]) + _pivots(x) * (1 + INT64) + INT64 * _matrices(x)


@scratch("cpu", "aten::_linalg_svd", source=LAPACK, band=0.0)
def _singular_values(out: Any, x: Any, *_: Any, **__: Any) -> int:
    """LAPACK's info, and a copy of the matrices, which it overwrites."""
    return INT32 * _matrices(x) + nbytes(x) + columns_block(x)


@reserve("cpu", "aten::linalg_lstsq", source=LAPACK, band=0.0)
def _solutions(out: Any, x: Any, b: Any, *_: Any, **__: Any) -> tuple[int | None, ...]:
    """The solutions are the first rows of a tensor that has room for the right-hand sides too."""
    rows, columns = map(int, x.shape[-2:])
    solutions = out[0]
    return solutions.numel() // max(1, columns) * max(rows, columns) * itemsize(x), None, None, None


@scratch("cpu", "aten::linalg_lu", source=LAPACK, band=0.0)
def _factors(out: Any, x: Any, *_: Any, **__: Any) -> int:
    """Both factors in one column-major matrix, from which they are copied, and their pivots."""
    return nbytes(x) + INT32 * _pivots(x) + INT32 * _matrices(x) + turned_block(x)


@reserve("cpu", "aten::_linalg_svd", source=LAPACK, band=0.0)
def _singular_vectors(
    out: Any, x: Any, full: bool = False, vectors: bool = True, **_: Any
) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if vectors else (0, None, 0)


@scratch("cpu", "aten::linalg_cholesky_ex", source=LAPACK, band=0.0)
def _cholesky(out: Any, x: Any, *_: Any, **__: Any) -> int:
    """As the triangle of the matrices, which the result starts with."""
    return triangle_of(x.shape, x.stride()) * itemsize(x)


@scratch("cpu", "aten::_linalg_eigh", source=LAPACK, band=0.0)
def _eigenvalues(out: Any, x: Any, lower: str = "L", vectors: bool = True) -> tuple[Phase, ...] | None:
    """LAPACK's info and workspace; without eigenvectors also a copy of the matrices, which it overwrites.

    The result tells whether there are eigenvectors: a step may leave out those that only a gradient needs.
    Since torch 2.8 the workspace has one more element (measured on 2.4, 2.6 and 2.8).
    """
    n, answers = int(x.shape[-1]), INT32 * _matrices(x)
    if x.dtype.is_complex:
        return None
    spare = 0 if since("2.8") else 1
    if elements(out[1]):
        work, integers = (2 * n * n + 6 * n + 2, 5 * n + 3) if n > 1 else (2, 1)
        return (Phase(ALL_RESULTS, answers + itemsize(x) * (work - spare) + INT32 * integers),)
    work = (_block_of_eigenvalues(x) + 2) * n + 1 if n > 1 else 2
    used = answers + itemsize(x) * (work - spare) + INT32
    return (Phase(ALL_RESULTS, nbytes(x) + max(columns_block(x), used)),)


@reserve("cpu", "aten::_linalg_eigh", source=LAPACK, band=0.0)
def _eigenvectors(out: Any, x: Any, lower: str = "L", vectors: bool = True) -> tuple[int | None, int | None]:
    return None, None if vectors else 0


def _block_of_eigenvalues(x: Any) -> int:
    """Return the rows MKL tridiagonalises per block; 1 for small matrices."""
    if x.shape[-1] <= 10:
        return 1
    if x.shape[-1] >= 32 and torch.get_num_threads() > 1:
        return 12
    return 24 if x.dtype is torch.float64 else 20


QR = f"{LAPACK}; MKL's block sizes, measured at 1 to 1,000 rows and columns"


@scratch("cpu", "aten::geqrf", source=QR, band=0.5)
def _reflections(out: Any, x: Any) -> int | AtMost | None:
    """LAPACK's workspace to compute the reflectors."""
    if x.dtype.is_complex:
        return None
    rows, columns = map(int, x.shape[-2:])
    return _with_threads(itemsize(x) * _to_reflect(rows, columns), x)


@scratch("cpu", "aten::linalg_qr", source=QR, band=0.5)
def _orthogonal(out: Any, x: Any, mode: str = "reduced") -> int | AtMost | None:
    """The reflectors' factors, and LAPACK's workspaces to compute and to apply them."""
    if x.dtype.is_complex:
        return None
    rows, columns = map(int, x.shape[-2:])
    width = int(out[0].shape[-1])
    applying = 0 if mode == "r" else _block_of_products(rows, width, x) * width + 1
    most = max(_to_reflect(rows, columns), applying)
    return _with_threads(itemsize(x) * (_matrices(x) * min(rows, columns) + most), x)


def _to_reflect(rows: int, columns: int) -> int:
    """Return the elements of LAPACK's workspace to compute reflectors."""
    return (_block_of_reflections(rows, columns) + 1) * (columns + 1)


def _with_threads(least: int, x: Any) -> int | AtMost:
    """Return scratch bytes and a bound on what MKL asks for with several threads.

    Blocks of 16 to 192 rows and columns were observed with 2 threads.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return least
    rows, columns = map(int, x.shape[-2:])
    further = (rows + columns) * max(16, min(columns, 256)) * threads
    return AtMost(itemsize(x) * further, (Phase(ALL_RESULTS, least),))


def _block_of_reflections(rows: int, columns: int) -> int:
    if columns <= 20 or max(rows, columns) <= 50:
        return 0
    if rows <= 10:
        return 1
    return _largest(min(rows, columns), (0, 16), (310, 24), (355, 48), (850, 64))


def _block_of_products(rows: int, columns: int, x: Any) -> int:
    least = 48 if x.dtype is torch.float64 else 32
    return 1 if rows < least else _largest(min(rows, columns), (0, 16), (65, 32), (505, 64))


def _largest(rank: int, *blocks: tuple[int, int]) -> int:
    """Return the size of the last (least rank, size) pair that applies."""
    return [size for least, size in blocks if rank >= least][-1]


@scratch("cpu", "aten::_euclidean_dist", source=f"{NATIVE}Distance.cpp, _euclidean_dist", band=0.0)
def _euclidean(out: Any, a: Any, b: Any) -> tuple[Phase, ...]:
    return euclidean_distance(a, b, a.shape[:-2], b.shape[:-2])


def euclidean_distance(a: Any, b: Any, batch_a: Sequence[int], batch_b: Sequence[int]) -> tuple[Phase, ...]:
    """|a|**2 - 2 a b + |b|**2 as one product of matrices with two extra columns: norms and ones.

    The batches are those that the rows are expanded to.
    """
    of_a, of_b = (prod((*batch, rows.shape[-2])) * itemsize(rows) for batch, rows in ((batch_a, a), (batch_b, b)))
    all_a, all_b = of_a * int(a.shape[-1]), of_b * int(b.shape[-1])
    wider_a, wider_b = all_a + 2 * of_a, all_b + 2 * of_b
    return (
        Phase(0, all_a + of_a),
        Phase(0, 2 * of_a + all_b + of_b),
        Phase(0, 2 * of_a + 2 * of_b + all_a + scalar(a)),
        Phase(0, 2 * of_a + 2 * of_b + all_a + wider_a),
        Phase(0, 2 * of_b + wider_a + wider_b),
        Phase(ALL_RESULTS, wider_a + wider_b),
    )
