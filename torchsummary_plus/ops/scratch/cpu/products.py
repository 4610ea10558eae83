"""Scratch memory of matrix products on the CPU: copies of operands BLAS cannot read, and oneDNN's scratchpads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..conjugates import is_resolved
from ..registry import ALL_RESULTS, Alloc, AtMost, Course, Phase, scratch
from ..sizes import elements, nbytes
from ..sliced_products import SOURCE, Products
from . import half
from .reductions import sum_bytes
from .transposing import is_turned, turned_block

BLAS = "aten/src/ATen/native/LinearAlgebra.cpp, addmm_impl_cpu_ and bmm_out_or_baddbmm_"

SMALL = 400
"""Multiply-adds per product below which ``bmm`` uses its own loop, which reads any strides."""


def _is_readable(matrix: Any) -> bool:
    """Whether BLAS can read a matrix: one axis contiguous, the other with a stride of at least that axis's length."""
    rows, columns = _pair(matrix.shape)
    down, across = _pair(matrix.stride())
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


def _pair(values: Sequence[int]) -> tuple[int, int]:
    """Return the values of the last two axes."""
    return values[-2], values[-1]


def _cloned(matrix: Any) -> int:
    return 0 if _is_readable(matrix) else nbytes(matrix)


def _copies(out: Any, *matrices: Any) -> int:
    return sum(nbytes(matrix) if is_resolved(matrix, out) else _cloned(matrix) for matrix in matrices)


@scratch("cpu", "aten::mm", source=BLAS, band=0.0)
def _mm(out: Any, a: Any, b: Any) -> int | AtMost:
    return half.beside(_copies(out, a, b), half.of_matrices(a, b))


@scratch("cpu", "aten::addmm", "aten::_addmm_activation", source=BLAS, band=0.0)
def _addmm(out: Any, bias: Any, a: Any, b: Any, *, alpha: complex = 1, **_: Any) -> int | AtMost:
    return _after_copy(bias, out, half.beside(_copies(out, a, b), half.of_matrices(a, b, alpha)))


@scratch("cpu", "aten::addmm_", source=BLAS, band=0.0)
def _addmm_in_place(out: Any, target: Any, a: Any, b: Any, *, alpha: complex = 1, **_: Any) -> int | AtMost:
    return _added(target, a, b, alpha)


@scratch("cpu", "aten::addbmm", "aten::addbmm_", source=f"{BLAS}; addbmm_impl_", band=0.0)
def _addbmm(out: Any, target: Any, a: Any, b: Any, *, alpha: complex = 1, **_: Any) -> int | AtMost:
    """One product after the other is added to the result."""
    return _added(out, _first(a), _first(b), alpha) if elements(a) * elements(b) else 0


def _added(target: Any, a: Any, b: Any, alpha: complex) -> int | AtMost:
    """Return the memory of a product that is added to a matrix, or to a copy by columns if BLAS cannot write to it.

    By columns, the product is passed as it is, else transposed.
    """
    copied = _copies(target, a, b) + _cloned(target)
    rows, columns = target.shape
    down, across = target.stride()
    if columns > 1 and ((down == 1 and across >= max(1, rows)) or not _is_readable(target)):
        a, b = _transposed(b), _transposed(a)
    return half.beside(copied, half.of_matrices(a, b, alpha))


def _first(batch: Any) -> Tensor:
    """Return the first matrix of a batch, on meta."""
    return torch.empty_strided(batch.shape[1:], batch.stride()[1:], dtype=batch.dtype, device="meta")


def _transposed(matrix: Any) -> Tensor:
    """Return a transposed matrix, or that of its copy by rows, on meta."""
    rows, columns = matrix.shape
    strides = matrix.stride() if _is_readable(matrix) else (columns, 1)
    return torch.empty_strided((columns, rows), strides[::-1], dtype=matrix.dtype, device="meta")


def _after_copy(bias: Any, out: Any, scratchpad: int | AtMost) -> int | AtMost:
    """Return a kernel's scratch memory if it first copies what it adds to into its result."""
    turned = bias.shape == out.shape and is_turned(bias) and out.is_contiguous()
    block = turned_block(bias) if turned else 0
    if isinstance(scratchpad, int):
        return max(block, scratchpad)
    return scratchpad._replace(phases=(Phase(ALL_RESULTS, block), *scratchpad.phases)) if block else scratchpad


def _is_batch_readable(batch: Any) -> bool:
    """Whether BLAS can read a batch as :func:`_is_readable` requires; axes of length 1 may have any stride."""
    rows, columns = _pair(batch.shape)
    down, across = _pair(batch.stride())
    return (across == 1 and (rows == 1 or down >= columns)) or (down == 1 and (columns == 1 or across >= rows))


def _is_small(a: Any, b: Any) -> bool:
    return elements(a) // max(1, len(a)) * int(b.shape[2]) < SMALL


def _one_by_one(a: Any, b: Any, alpha: complex = 1) -> int | AtMost:
    """Nothing if BLAS takes the whole batch; else the copies for one product, since they run one after another."""
    if a.is_conj() or b.is_conj():
        return sum(nbytes(batch) for batch in (a, b) if batch.is_conj())
    if half.takes_batch(a, b):
        return half.of_batch(a, b, alpha)
    if _is_small(a, b) or (_is_batch_readable(a) and _is_batch_readable(b)):
        return 0
    return (_cloned(a) + _cloned(b)) // len(a)


@scratch("cpu", "aten::bmm", source=BLAS, band=0.0)
def _bmm(out: Any, a: Any, b: Any) -> int | AtMost:
    return _one_by_one(a, b)


@scratch("cpu", "aten::baddbmm_", source=BLAS, band=0.0)
def _baddbmm_in_place(out: Any, target: Any, a: Any, b: Any, *, alpha: complex = 1, **_: Any) -> int | AtMost:
    """To a target that is not contiguous, BLAS writes one product after the other, and oneDNN by another kernel."""
    if target.is_contiguous():
        return _one_by_one(a, b, alpha)
    if half.takes_batch(a, b):
        return half.of_batch_into_strides(a, b, alpha)
    product = 0 if _is_small(a, b) or _is_batch_readable(target) else _cloned(target) // len(target)
    return half.beside(product, _one_by_one(a, b, alpha))


@scratch("cpu", "aten::baddbmm", source=BLAS, band=0.0)
def _baddbmm(out: Any, bias: Any, a: Any, b: Any, *, alpha: complex = 1, **_: Any) -> int | AtMost:
    return _one_by_one(a, b, alpha)


@scratch("cpu", "aten::_trilinear", source=SOURCE, band=0.0)
def _trilinear(out: Any, *args: Any) -> Course | AtMost:
    """For each slice, the summed product of the first two and its product with the third, one after the other."""
    bounds = [0]

    def allocated(nbytes: int | AtMost) -> Course:
        if isinstance(nbytes, int):
            return (Alloc(nbytes),)
        bounds.append(nbytes.nbytes)
        return tuple(Alloc(phase.nbytes) for phase in nbytes.phases)

    course = Products(
        lambda summed, tensor, axis: allocated(sum_bytes(summed, tensor, [axis])),
        lambda product, a, b: allocated(_one_by_one(a, b)),
    ).of_slice(*args)
    return AtMost(max(bounds), course) if max(bounds) else course
