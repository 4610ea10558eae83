"""Scratch memory of distances between rows on the CPU."""

from __future__ import annotations

from math import prod
from typing import Any

from ..registry import Phase, scratch
from ..sizes import NATIVE, copied, itemsize
from .linalg import euclidean_distance

SOURCE = f"{NATIVE}Distance.cpp, cdist_impl and _cdist_backward"
BY_PRODUCTS, LEAST_ROWS = 1, 25
"""The mode that multiplies matrices, and the rows above which that is the default."""


def _spread(x: Any, batch: tuple[int, ...]) -> int:
    """Return the bytes of the contiguous copy of rows that are expanded to a batch; 0 if none is needed."""
    shape = (*batch, *x.shape[-2:])
    return copied(x) if tuple(x.shape) == shape else prod(shape) * itemsize(x)


@scratch("cpu", "aten::_cdist_forward", source=SOURCE, band=0.0)
def _distances(out: Any, x: Any, y: Any, p: float, mode: int | None = None) -> tuple[Phase, ...]:
    """Contiguous copies of both, in the batch of both; long Euclidean ones by a matrix product of these."""
    batch = tuple(out.shape[:-2])
    copies = sum(_spread(rows, batch) for rows in (x, y))
    is_long = not mode and max(x.shape[-2], y.shape[-2]) > LEAST_ROWS
    if p != 2 or not (mode == BY_PRODUCTS or is_long) or not (out.numel() and x.shape[-1]):
        return (Phase(0, copies), Phase(1, copies))
    batches = (batch, batch) if prod(batch) > 1 else (x.shape[:-2], y.shape[:-2])
    return tuple(Phase(phase.results, copies + phase.nbytes) for phase in euclidean_distance(x, y, *batches))


@scratch("cpu", "aten::_cdist_backward", source=SOURCE, band=0.0)
def _distances_backward(out: Any, grad: Any, x: Any, y: Any, p: float, distances: Any) -> int:
    """Contiguous copies of all four; none for an empty result."""
    if not out.numel():
        return 0
    batch = tuple(distances.shape[:-2])
    return sum(_spread(rows, batch) for rows in (x, y)) + copied(grad) + copied(distances)
