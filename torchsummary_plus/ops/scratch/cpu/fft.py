"""Scratch memory of Fourier transforms on the CPU: copies for MKL, and intermediate results per axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ....live.versions import since
from ..registry import scratch
from .copies import NATIVE, nbytes

MKL = f"{NATIVE}mkl/SpectralOps.cpp"


def _batched(x: Any, dims: Sequence[int]) -> int:
    """A copy of an input whose other axes have no common stride or, since torch 2.10, which repeats elements.

    Some earlier releases reject such an input (MKL's "inconsistent configuration parameters").
    """
    axes = {dim % x.dim() for dim in dims}
    steps = [(size, stride) for size, stride in zip(x.shape, x.stride()) if size > 1]
    batch = sorted(((x.stride(axis), x.shape[axis]) for axis in range(x.dim()) if axis not in axes), reverse=True)
    batch = [(stride, size) for stride, size in batch if size > 1]
    even = all(outer == inner * size for (outer, _), (inner, size) in pairwise(batch))
    repeats = since("2.10") and not all(stride for _, stride in steps)
    return nbytes(x) if repeats or not even else 0


@scratch("cpu", "aten::_fft_r2c", "aten::_fft_c2c", source=f"{MKL}, _exec_fft", band=0.0)
def _transform(out: Any, x: Any, dims: Sequence[int], *_: Any) -> int:
    return _batched(x, dims)


@scratch("cpu", "aten::_fft_c2r", source=f"{MKL}, _fft_c2r_mkl", band=0.0)
def _to_real(out: Any, x: Any, dims: Sequence[int], *_: Any) -> int:
    """All axes but the last as complex numbers first; that result is copied for the last axis."""
    return 2 * nbytes(x) if len(dims) > 1 else _batched(x, dims)
