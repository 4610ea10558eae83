"""Scratch memory of Fourier transforms on the CPU: copies for MKL, and intermediate results per axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ....live.versions import since
from ..registry import ALL_RESULTS, Phase, scratch
from ..sizes import NATIVE, nbytes

MKL = f"{NATIVE}mkl/SpectralOps.cpp"


Axis = tuple[int, int]
"""An axis's size and stride, in elements."""


def _is_copied(axes: Sequence[Axis], dims: Sequence[int]) -> bool:
    """Whether an input is copied: its other axes have no common stride or, since torch 2.10, it repeats elements.

    Some earlier releases reject such an input (MKL's "inconsistent configuration parameters").
    """
    batch = sorted(((stride, size) for size, stride in _others(axes, dims) if size > 1), reverse=True)
    even = all(outer == inner * size for (outer, _), (inner, size) in pairwise(batch))
    return not even or (since("2.10") and not all(stride for size, stride in axes if size > 1))


def _others(axes: Sequence[Axis], dims: Sequence[int]) -> list[Axis]:
    along = {dim % len(axes) for dim in dims}
    return [axis for number, axis in enumerate(axes) if number not in along]


def _transformed(axes: Sequence[Axis], dims: Sequence[int]) -> list[Axis]:
    """The axes of a complex transform's result: the transformed ones vary fastest, all in the input's order."""
    along = {dim % len(axes) for dim in dims}
    order = sorted(range(len(axes)), key=lambda number: (number in along, -axes[number][1]))
    result, step = list(axes), 1
    for number in reversed(order):
        result[number] = axes[number][0], step
        step *= axes[number][0]
    return result


@scratch("cpu", "aten::_fft_r2c", "aten::_fft_c2c", source=f"{MKL}, _exec_fft", band=0.0)
def _transform(out: Any, x: Any, dims: Sequence[int], *_: Any) -> int:
    return nbytes(x) if _is_copied(list(zip(x.shape, x.stride())), dims) else 0


@scratch("cpu", "aten::_fft_c2r", source=f"{MKL}, _fft_c2r_mkl", band=0.0)
def _to_real(out: Any, x: Any, dims: Sequence[int], *_: Any) -> tuple[Phase, ...]:
    """All axes but the last as complex numbers first."""
    *first, last = dims
    axes, phases, spectrum = list(zip(x.shape, x.stride())), list[Phase](), 0
    if first:
        spectrum = nbytes(x)
        phases.append(Phase(0, spectrum + (nbytes(x) if _is_copied(axes, first) else 0)))
        axes = _transformed(axes, first)
    return (*phases, Phase(ALL_RESULTS, spectrum + (nbytes(x) if _is_copied(axes, [last]) else 0)))
