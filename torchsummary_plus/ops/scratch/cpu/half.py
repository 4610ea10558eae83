"""Scratch memory of half-precision matrix products on the CPU where oneDNN multiplies: scratchpad and copies.

aten/src/ATen/native/CPUBlas.cpp (``gemm``), mkldnn/Matmul.cpp (``mkldnn_gemm``, ``mkldnn_matmul``).
"""

from __future__ import annotations

from typing import Any

import torch

from ....live import compat
from ...processor import has_avx512, has_avx512_bf16, has_avx512_fp16, has_fp16_tiles, has_tiles, is_half, multiplies
from ..registry import ALL_RESULTS, AtMost, Phase, scratch
from ..sizes import copied, elements, nbytes
from .onednn.description import BATCH_ELEMENT, FLOAT, threads
from .onednn.products import Product, about_by_tiles, by_blocks, by_gemm

SMALL = 16 * 16 * 16
"""Multiply-adds up to which torch multiplies itself."""


def beside(nbytes: int, scratchpad: int | AtMost) -> int | AtMost:
    """Return a scratchpad plus ``nbytes``."""
    if isinstance(scratchpad, int):
        return nbytes + scratchpad
    phases = tuple(phase._replace(nbytes=phase.nbytes + nbytes) for phase in scratchpad.phases)
    return AtMost(nbytes + scratchpad.nbytes, phases)


def within(dtype: torch.dtype, nbytes: int, more: int, band: float) -> int | AtMost:
    """Return the memory of a kernel with inner products: exact unless oneDNN multiplies, else within a bound."""
    if not is_half(dtype) or not torch.backends.mkldnn.enabled or not multiplies(dtype):
        return nbytes
    return AtMost(more, (Phase(ALL_RESULTS, max(0, nbytes), band),))


def _scaled(scratchpad: int | AtMost, alpha: complex) -> int | AtMost:
    """Add the tensor that holds the product's factor, which oneDNN gets unless it is 1."""
    return scratchpad if alpha == 1 else beside(FLOAT, scratchpad)


def of_matrices(a: Any, b: Any, alpha: complex = 1) -> int | AtMost:
    """Return the scratchpad of a matrix product, passed column-major through BLAS's interface; 0 if torch multiplies.

    For a single-column result, oneDNN gets the transposed product. torch computes matrix-vector products itself if the
    matrix is contiguous along the vector: always in float16, and in bfloat16 if the CPU has no instructions for it.
    """
    (m, k), n = a.shape, b.shape[1]
    if not _is_taken(a, b) or m * n * k <= SMALL:
        return 0
    turned = _is_turned(a), _is_turned(b)
    along = m == 1 and turned[1]
    if n == 1:
        along = not turned[0] and b.stride(0) == 1 and b.stride(1) >= k
    if along and (a.dtype is torch.float16 or not compat.has_avx512_bf16()):
        return 0
    if n == 1:
        return _scaled(_scratchpad(a.dtype, 1, 1, m, k, (False, not turned[0])), alpha)
    return _scaled(_scratchpad(a.dtype, 1, m, n, k, turned), alpha)


def of_sizes(dtype: torch.dtype, m: int, n: int, k: int, turned: tuple[bool, bool], alpha: complex = 1) -> int | AtMost:
    """Return the scratchpad of a product of m x k and k x n matrices inside a kernel; 0 if torch multiplies."""
    if not takes(dtype) or m * n * k <= SMALL:
        return 0
    return _scaled(_scratchpad(dtype, 1, m, n, k, turned), alpha)


def takes_batch(a: Any, b: Any) -> bool:
    """Whether oneDNN runs a batched product."""
    return _is_taken(a, b) and elements(a) * int(b.shape[-1]) > SMALL


def of_batch(a: Any, b: Any, alpha: complex = 1) -> int | AtMost:
    """Return the scratchpad of a batched product, plus copies of batches that are neither row- nor column-major."""
    turned = tuple(_is_by_columns(x) and not x.is_contiguous() for x in (a, b))
    sizes = len(a), int(a.shape[1]), int(b.shape[2]), int(a.shape[2])
    return beside(_batch_copies(a, b), _scaled(_scratchpad(a.dtype, *sizes, (turned[0], turned[1])), alpha))


def of_batch_into_strides(a: Any, b: Any, alpha: complex = 1) -> int | AtMost:
    """As :func:`of_batch` if the result is not contiguous: kernels by blocks need no scratchpad then."""
    if has_avx512_bf16() and not has_tiles():
        return _scaled(_batch_copies(a, b), alpha)
    known = of_batch(a, b, alpha)
    return AtMost(known, (Phase(ALL_RESULTS, _batch_copies(a, b)),)) if isinstance(known, int) else known


def _batch_copies(a: Any, b: Any) -> int:
    """Return the copies of batches that are neither row- nor column-major."""
    return sum(0 if _is_by_columns(x) else copied(x) for x in (a, b))


def _is_taken(a: Any, b: Any) -> bool:
    return takes(a.dtype) and a.dtype is b.dtype


def takes(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies in this dtype (``mkldnn_bf16_device_check``, ``mkldnn_fp16_device_check``)."""
    enabled = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return bool(is_half(dtype) and enabled and multiplies(dtype))


def _is_turned(matrix: Any) -> bool:
    """Whether BLAS reads a matrix, or its copy, as column-major."""
    rows, columns = matrix.shape
    down, across = matrix.stride()
    return bool(down == 1 and across >= max(1, rows) and not (across == 1 and down >= max(1, columns)))


def _is_by_columns(batch: Any) -> bool:
    """Whether each matrix of a batch is column-major."""
    _, rows, columns = batch.shape
    return bool(batch.stride() == (rows * columns, 1, rows))


def _scratchpad(dtype: torch.dtype, batch: int, m: int, n: int, k: int, turned: tuple[bool, bool]) -> int | AtMost:
    """Return the scratchpad of the first kernel in oneDNN's list that this CPU can run."""
    turned = (turned[0] and m > 1, turned[1])
    if dtype is torch.bfloat16 and has_tiles():
        estimate = about_by_tiles(Product(batch, m, n, k, turned, 2), threads())
        return at_most(m, n, k)._replace(phases=(Phase(ALL_RESULTS, estimate, band=1.0),))
    if dtype is torch.bfloat16 and has_avx512():
        product = Product(batch, m, n, k, turned, 2)
        return by_blocks(product, threads(), False) if has_avx512_bf16() else by_gemm(product, threads())
    if dtype is torch.float16 and has_avx512_fp16() and not has_fp16_tiles():
        return by_blocks(Product(batch, m, n, k, turned, FLOAT), threads(), True)
    return at_most(m, n, k)


def at_most(m: int, n: int, k: int) -> AtMost:
    """Bound the scratchpad: per thread, full copies of the matrices and a float32 result, in blocks of 64."""
    m, n, k = m + 64, n + 64, k + 64
    return AtMost(threads() * (FLOAT * (m * k + k * n + m * n) + BATCH_ELEMENT * k + 16 * 1024))


@scratch("cpu", "aten::mv", "aten::addmv", "aten::addmv_", source="aten/src/ATen/native/Blas.cpp, addmv_out", band=0.0)
def _vector(out: Any, *args: Any, beta: complex = 1, alpha: complex = 1) -> int | AtMost:
    """A matrix-vector product, run as one with a single-column matrix."""
    matrix, vector = args[-2:]
    rows, columns = matrix.shape
    if not _is_taken(matrix, vector) or elements(matrix) <= SMALL:
        down, across = matrix.stride()
        readable = (down == 1 and across >= max(1, rows)) or (across == 1 and down >= max(1, columns))
        return 0 if readable else nbytes(matrix)
    by_columns = matrix.stride() == (1, rows) and not matrix.is_contiguous()
    copies = copied(vector) + (0 if by_columns else copied(matrix))
    return beside(copies, _scaled(_scratchpad(matrix.dtype, 1, rows, 1, columns, (by_columns, False)), alpha))


@scratch("cpu", "aten::dot", "aten::vdot", source="aten/src/ATen/native/Blas.cpp, dot", band=0.0)
def _inner(out: Any, a: Any, b: Any) -> int | AtMost:
    """An inner product, run as one of matrices; only a bound is known."""
    return at_most(1, 1, elements(a)) if _is_taken(a, b) and elements(a) > SMALL else 0
