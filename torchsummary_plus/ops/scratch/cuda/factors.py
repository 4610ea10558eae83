"""CUDA: what torch itself allocates for factorizations and solves; what cuSOLVER works in is only bounded.

Besides results: copies in column-major order, pivots, permutations, arrays of pointers to the matrices of a batch, and
a status for each matrix. The sizes that cuSOLVER asks for (``*_bufferSize``) are unknown without a GPU. Its solves with
factors ask for none, and cuBLAS and MAGMA allocate their own outside torch's allocator.
"""

from __future__ import annotations

from typing import Any

from ....data.units import MIB
from ....live.versions import since
from ..registry import DOUBT, Alloc, AtMost, Course, Free, Lasting, Result, reserve, scratch
from ..sizes import INT64, columns_first, itemsize, nbytes
from .allocations import Allocations, buffers, joined, results
from .linalg import (
    FEW_FACTORED_SINCE,
    FEW_TRIANGLES,
    LARGE_TRIANGLE,
    LINALG,
    TRIANGLES_SINCE,
    Way,
    columns_of,
    is_adjoint,
    is_factored_by_cublas,
    is_solved_twice,
    matrices_of,
    way_to_factor,
    way_to_solve,
)

INT32 = 4
STATUS = INT32
"""Bytes of the status of one matrix."""
POINTER = 8
LEAST_WORK = 32 * MIB
"""What cuSOLVER is granted for matrices of any size; unmeasured."""
SOURCE = f"{LINALG}, BatchLinearAlgebraLib.cpp; aten/src/ATen/native/BatchLinearAlgebra.cpp"


def bounded(course: Course, *tensors: Any) -> AtMost:
    """Return a course besides which cuSOLVER works in a multiple of the tensors' bytes at most.

    So are results without elements, for which kernels fill in constants.
    """
    return AtMost(DOUBT * sum(map(nbytes, tensors)) + LEAST_WORK, course)


def _unless_known(course: Course, x: Any, *more: Any) -> Course | AtMost:
    """Return a course with factors of ``x`` as it is if only torch and cuBLAS work on it, bounded otherwise."""
    is_known = since(FEW_FACTORED_SINCE) and way_to_factor(x) is not Way.LOOPED
    return course if is_known else bounded(course, x, *more)


def solved(rows: int, matrices: int, columns: int = 1) -> Course:
    """Return the course of a triangular solve: pointers to the matrices of a batch, and cuBLAS's workspace.

    Without right-hand sides, there are no pointers to them.
    """
    if not rows * matrices or (rows >= LARGE_TRIANGLE and matrices <= FEW_TRIANGLES):
        return (Lasting(),)
    pointers = Alloc(POINTER * matrices)
    if not columns:
        return pointers, Lasting(), Free(0)
    return pointers, pointers, Lasting(), Free(1), Free(0)


def factored_systems_solved(rows: int, columns: int, matrices: int, item: int, adjoint: bool) -> Course:
    """Return the course of a solve with factors and pivots (``lu_solve_kernel``).

    Triangular solves permute a copy of the right-hand sides, before them or, for a transposed system, after them.
    """
    way = way_to_solve(rows, columns, matrices, adjoint)
    if way is Way.LOOPED:
        return (Alloc(STATUS),)
    if way is Way.BATCHED:
        return Alloc(POINTER * matrices), Alloc(POINTER * matrices), Lasting()
    steps, order, sides = Allocations(), INT64 * rows, item * rows * columns * matrices
    counted = steps.buffer(order)
    if matrices > 1:
        steps.buffer(order * matrices)
        steps.free(counted)
    before, after = ((), (sides,)) if adjoint else ((order, order * matrices, sides), ())
    steps.append(buffers(*before))
    steps.append(solved(rows, matrices))
    steps.append(solved(rows, matrices))
    steps.append(buffers(*after))
    return steps.course()


@scratch("cuda", "aten::triangular_solve", "aten::linalg_solve_triangular", source=SOURCE, band=0.0)
def triangular(out: Any, first: Any, second: Any, *_: Any, **__: Any) -> Course:
    """Pointers to the matrices of a batch, unless they are solved one by one.

    The older operator, with two results, takes the matrices after the right-hand sides.
    """
    matrix, sides = (second, first) if isinstance(out, (tuple, list)) else (first, second)
    return *results(out), *solved(int(matrix.shape[-1]), matrices_of(matrix), int(sides.numel()))


@scratch("cuda", "aten::linalg_lu_factor_ex", source=SOURCE, band=0.0)
def lu_factor(out: Any, x: Any, **_: Any) -> Course | AtMost:
    """The results, then what the factorization allocates."""
    return _unless_known(joined(results(out), _factoring(x)), x)


@scratch("cuda", "aten::linalg_ldl_factor_ex", source=SOURCE, band=0.0)
def ldl_factor(out: Any, x: Any, **_: Any) -> AtMost:
    """The results, and at most the solver's own memory."""
    return bounded(results(out), x)


@scratch("cuda", "aten::linalg_lu", source=SOURCE, band=0.0)
def lu(out: Any, x: Any, **_: Any) -> Course | AtMost:
    """The factors, pivots and statuses; then the permutation."""
    if not x.numel():
        return bounded(results(out), x)
    matrices, least = matrices_of(x), min(x.shape[-2:])
    steps = Allocations([*results(out)])
    steps.buffer(nbytes(x))
    steps.buffer(INT32 * least * matrices)
    steps.free(steps.buffer(STATUS * matrices))
    steps.append(_factoring(x))
    steps.append(_permutation(x))
    return _unless_known(steps.course(), x)


@scratch("cuda", "aten::lu_unpack", source=SOURCE, band=0.0)
def unpacked(out: Any, x: Any, *_: Any, **__: Any) -> Course:
    """The permutation."""
    return *results(out), *(_permutation(x) if x.numel() else ())


def _permutation(x: Any) -> Course:
    matrices, order = matrices_of(x), INT64 * int(x.shape[-2])
    return buffers(order, order * matrices if matrices > 1 else 0)


@scratch("cuda", "aten::linalg_lu_solve", source=SOURCE, band=0.0)
def lu_solve(out: Any, lu: Any, pivots: Any, b: Any, **how: bool) -> Course:
    """A column-major copy of the factors."""
    if not out.numel():
        return ()
    rows, matrices = int(lu.shape[-1]), matrices_of(out)
    columns = columns_of(out, rows, matrices)
    course = factored_systems_solved(rows, columns, matrices, itemsize(out), is_adjoint(**how))
    return joined((Result(0), *buffers(columns_first(lu))), course)


@scratch("cuda", "aten::_linalg_solve_ex", source=SOURCE, band=0.0)
def solve(out: Any, x: Any, b: Any, *, left: bool = True, **_: Any) -> Course | AtMost:
    """Factors, for a batch by cuBLAS or MAGMA, then solutions."""
    rows, matrices = int(x.shape[-1]), matrices_of(x)
    columns = columns_of(out[0], rows, matrices)
    if not rows * matrices * columns:
        return bounded(results(out), x)
    course = factored_systems_solved(rows, columns, matrices, itemsize(x), is_adjoint(left))
    return _unless_known(joined(results(out), _factoring(x), course), x, b)


@scratch("cuda", "aten::linalg_inv_ex", source=SOURCE, band=0.0)
def inverse(out: Any, x: Any, **_: Any) -> Course | AtMost:
    """The factors and pivots, then a solve for the identity."""
    rows, matrices = int(x.shape[-1]), matrices_of(x)
    if not x.numel():
        return bounded(results(out), x)
    before: Course = (*results(out), Alloc(nbytes(x)), Alloc(INT32 * rows * matrices))
    course = factored_systems_solved(rows, rows, matrices, itemsize(x), is_adjoint())
    return _unless_known(joined(before, _factoring(x), course), x, x)


def _factoring(x: Any) -> Course:
    """Return the course of a factorization: pointers, and pivots of its own where torch does it.

    Up to 2.14, MAGMA factors larger batches without pointers in torch's memory.
    """
    way, pointers = way_to_factor(x), POINTER * matrices_of(x)
    if not x.numel() or way is Way.LOOPED:
        return ()
    if way is Way.BLOCKED:
        pivots = Alloc(INT32 * int(x.shape[-1]) * matrices_of(x))
        return Alloc(2 * pointers), pivots, Lasting(), Free(1), Free(0)
    return (Alloc(pointers), Lasting(), Free(0)) if since(FEW_FACTORED_SINCE) else (Lasting(),)


@scratch("cuda", "aten::_linalg_det", "aten::_linalg_slogdet", source=SOURCE, band=0.0)
def determinant(out: Any, x: Any) -> Course | AtMost:
    """Statuses; the pivots compared with the rows' numbers, and counted; the diagonal's product, or signs and logs."""
    rows, matrices = int(x.shape[-1]), matrices_of(x)
    if not x.numel():
        return bounded(results(out), x)
    is_product, numbers = len(out) == 3, itemsize(x) * matrices
    steps = Allocations([*results(out)])
    steps.buffer(STATUS * matrices)
    steps.append(joined(_factoring(x), buffers(numbers if is_product else 0)))
    rows_numbered, mask = steps.buffer(INT32 * rows), steps.buffer(rows * matrices)
    exchanged = steps.buffer(INT64 * matrices)
    steps.temporary(INT64 * rows * matrices)
    steps.free(mask, rows_numbered)
    if not is_product:
        steps.free(*steps.append(buffers(numbers * rows, numbers)), exchanged)
        steps.temporary(numbers * rows)
    return _unless_known(steps.course(), x)


@scratch("cuda", "aten::linalg_cholesky_ex", source=SOURCE, band=0.0)
def cholesky(out: Any, x: Any, **_: Any) -> Course | AtMost:
    """Pointers to the matrices of a batch."""
    matrices = matrices_of(x)
    pointers = POINTER * matrices if matrices > 1 and x.numel() else 0
    return bounded((*results(out), *buffers(pointers)), x)


@scratch("cuda", "aten::cholesky_solve", source=SOURCE, band=0.0)
def cholesky_solve(out: Any, b: Any, factor: Any, *_: Any) -> Course:
    """A status and a column-major copy of the factor."""
    return _solved_by_cholesky(factor, int(b.numel()), Result(0)) if out.numel() or is_solved_twice(factor) else ()


@scratch("cuda", "aten::cholesky_inverse", source=SOURCE, band=0.0)
def cholesky_inverse(out: Any, factor: Any, *_: Any) -> Course:
    """The identity, for which torch solves; up to 2.11, cuSOLVER solved for it in the copy of the factor."""
    if not out.numel() and not is_solved_twice(factor):
        return ()
    identity: Course = (Result(0), Alloc(nbytes(factor)))
    if not since(TRIANGLES_SINCE):
        return (*identity, Alloc(STATUS) if matrices_of(factor) == 1 else Lasting())
    return joined(identity, _solved_by_cholesky(factor, int(factor.numel())))


def _solved_by_cholesky(factor: Any, columns: int, *first: Result) -> Course:
    """Return the course of a solve by cuSOLVER; MAGMA solves batches, in later releases two triangular solves do."""
    matrices, copy = matrices_of(factor), Alloc(nbytes(factor))
    if is_solved_twice(factor):
        pair = solved(int(factor.shape[-1]), matrices, columns)
        return joined(first, pair, pair)
    return (Alloc(STATUS), *first, copy) if matrices == 1 else (*first, copy, Lasting())


def _reflections(x: Any) -> Course:
    """Return the course of a factorization into reflections: statuses, or pointers for a batch of small matrices."""
    if not is_factored_by_cublas(x):
        return Alloc(STATUS), Free(0)
    pointers = Alloc(POINTER * matrices_of(x))
    return pointers, pointers, Lasting(), Free(1), Free(0)


@scratch("cuda", "aten::geqrf", source=SOURCE, band=0.0)
def reflections(out: Any, x: Any) -> Course | AtMost:
    """The results, then what the factorization into reflections allocates."""
    return bounded(joined(results(out), _reflections(x)), x) if x.numel() else bounded(results(out), x)


@scratch("cuda", "aten::linalg_qr", source=SOURCE, band=0.0)
def qr(out: Any, x: Any, mode: str = "reduced") -> Course | AtMost:
    """The reflections' factors; the status of their product, unless that is not wanted."""
    if not x.numel():
        return bounded(results(out), x)
    taus = Alloc(itemsize(x) * min(x.shape[-2:]) * matrices_of(x))
    status = () if mode == "r" else (Alloc(STATUS),)
    return bounded(joined((*results(out), taus), _reflections(x), status), x, *out)


@scratch("cuda", "aten::linalg_householder_product", source=SOURCE, band=0.0)
def product_of_reflections(out: Any, x: Any, *_: Any) -> Course | AtMost:
    """A status."""
    return bounded((Result(0), Alloc(STATUS)), x) if x.numel() else bounded(results(out), x)


@scratch("cuda", "aten::ormqr", source=SOURCE, band=0.0)
def times_reflections(out: Any, x: Any, *_: Any, **__: Any) -> Course | AtMost:
    """A column-major copy of the reflections, and a status."""
    return bounded((Result(0), *buffers(columns_first(x)), Alloc(STATUS)), x, out) if out.numel() else ()


@reserve("cuda", "aten::linalg_lstsq", source=SOURCE, band=0.0)
def least_squares_storage(out: Any, x: Any, b: Any, *_: Any, **__: Any) -> tuple[int | None, ...]:
    """The solution is a part of a copy of the right-hand sides, as many rows as the matrices' larger side."""
    rows, columns = x.shape[-2:]
    return (nbytes(out[0]) // columns * max(rows, columns) if columns else None, *(None,) * (len(out) - 1))


@scratch("cuda", "aten::linalg_lstsq", source=SOURCE, band=0.0)
def least_squares(out: Any, x: Any, b: Any, *_: Any, **__: Any) -> Course | AtMost:
    """A copy of the matrices, their reflections, and a triangular solve; cuBLAS solves batches of small matrices.

    Wide matrices are transposed first.
    """
    if not x.numel() or not b.numel():
        return bounded(results(out), x)
    matrices, (rows, columns) = matrices_of(x), x.shape[-2:]
    steps = Allocations([Alloc(STATUS * matrices), Result(0), Alloc(nbytes(x))], 2)
    if is_factored_by_cublas(x):
        working = steps.append(buffers(nbytes(x), POINTER * matrices, POINTER * matrices))
        steps.request_lasting()
        steps.free(*working)
    else:
        taus = steps.buffer(itemsize(x) * min(rows, columns) * matrices)
        steps.temporary(STATUS)
        steps.temporary(STATUS)
        steps.append(solved(min(rows, columns), matrices))
        steps.free(taus)
    steps.steps += results(out)[1:]
    return bounded(steps.course(), x, b)


@scratch("cuda", "aten::_linalg_svd", source=SOURCE, band=0.0)
def singular_values(
    out: Any, x: Any, full_matrices: bool = False, compute_uv: bool = True, **_: Any
) -> Course | AtMost:
    """Statuses and a copy of the matrices; the larger square of vectors, if matrices are not square."""
    if not x.numel():
        return bounded(results(out), x)
    matrices, side = matrices_of(x), max(x.shape[-2:])
    square = itemsize(x) * side * side * matrices if compute_uv and x.shape[-2] != x.shape[-1] else 0
    order = Result(0), Result(2), Result(1)
    return bounded((*order, *buffers(STATUS * matrices, nbytes(x), square)), x, *out)


@scratch("cuda", "aten::_linalg_eigh", source=SOURCE, band=0.0)
def eigenvalues(out: Any, x: Any, uplo: str = "L", compute_v: bool = True, **_: Any) -> Course | AtMost:
    """The vectors, or a copy of the matrices; statuses, and whether any is set."""
    if not x.numel():
        return bounded(results(out), x)
    first = Result(1) if compute_v else Alloc(nbytes(x))
    checks = (1, 1) if matrices_of(x) == 1 else (1,)
    return bounded((first, Result(0), *buffers(STATUS * matrices_of(x), *checks)), x, x)
