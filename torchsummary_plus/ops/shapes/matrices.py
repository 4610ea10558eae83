"""Results of LAPACK's decompositions on the CPU, which are column-major where torch's meta kernels say row-major.

Source: aten/src/ATen/native/BatchLinearAlgebra.cpp, ``_linalg_svd`` and ``linalg_eig_out``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..strides import contiguous
from .registry import Out, Outs, fresh, numel, rule, sure

_REALS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {real: kind for kind, real in _REALS.items()}


def column_major(shape: Sequence[int], dtype: torch.dtype) -> Out:
    """A new batch of matrices, each of which is column-major.

    >>> column_major((2, 3, 4), torch.float32)
    ((2, 3, 4), (12, 1, 3), torch.float32)
    """
    return tuple(shape), (*contiguous(shape)[:-2], 1, shape[-2]), dtype


@rule("_linalg_svd")
def svd(x: Tensor, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None) -> Outs:
    """Both bases column-major, and the singular values."""
    sure(x.device.type == "cpu" and compute_uv and x.dim() > 1 and numel(x.shape))
    sure(x.dtype in _REALS or x.dtype in _COMPLEX)
    *batch, rows, columns = x.shape
    rank = min(rows, columns)
    left, right = (rows, columns) if full_matrices else (rank, rank)
    values = fresh((*batch, rank), _REALS.get(x.dtype, x.dtype))
    return [column_major((*batch, rows, left), x.dtype), values, column_major((*batch, right, columns), x.dtype)]


@rule("linalg_eig")
def eig(x: Tensor) -> Outs:
    """The eigenvalues, and the eigenvectors column-major."""
    sure(x.device.type == "cpu" and x.dim() > 1 and numel(x.shape) and x.shape[-1] == x.shape[-2])
    sure(x.dtype in _REALS or x.dtype in _COMPLEX)
    dtype = _COMPLEX.get(x.dtype, x.dtype)
    return [fresh(x.shape[:-1], dtype), column_major(x.shape, dtype)]


@rule("geqrf")
def reflections(x: Tensor) -> Outs:
    """The reflections, column-major, and their factors; torch has no meta kernel."""
    sure(x.dim() >= 2 and (x.is_floating_point() or x.is_complex()))
    return [column_major(x.shape, x.dtype), fresh((*x.shape[:-2], min(x.shape[-2:])), x.dtype)]
