"""CUDA: grids and columns of images, and distances.

Source: aten/src/ATen/native/AffineGridGenerator.cpp and aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ....data.capability import Capability
from ..registry import Alloc, Course, Free, Result, reserve, scratch
from ..sizes import copied, itemsize, nbytes
from .chips import chip_of
from .reductions import Kind, course, sum_like

GRID = "aten/src/ATen/native/AffineGridGenerator.cpp"


@scratch("cuda", "aten::affine_grid_generator", source=GRID, band=0.0)
def affine_grid(out: Any, theta: Any, size: Any, align_corners: bool) -> Course:
    """The grid in homogeneous coordinates, each axis from a line of points; then its product with ``theta``."""
    if not prod(size):
        return ()
    axes, item = len(size) - 2, itemsize(out)
    steps: list[Any] = [Alloc(nbytes(out) // axes * (axes + 1))]
    for length in reversed(size[2:]):
        first = sum(isinstance(step, Alloc) for step in steps)
        lines = 1 if align_corners or length == 1 else 3
        steps += [Alloc(length * item)] * lines + [Free(first + line) for line in reversed(range(lines))]
    return *steps, Result(0)


@scratch("cuda", "aten::im2col", "aten::col2im", source="aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu", band=0.0)
def columns(out: Any, x: Any, *_: Any) -> Course:
    """The result starts with the input's bytes and is allocated anew if they are too few."""
    copies = (Alloc(copied(x)),) if copied(x) else ()
    if nbytes(out) <= nbytes(x):
        return Result(0), *copies
    return Alloc(nbytes(x)), *copies, Result(0)


@reserve("cuda", "aten::im2col", "aten::col2im", source="aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu", band=0.0)
def columns_storage(out: Any, x: Any, *_: Any) -> tuple[int, ...]:
    """The result starts with the input's bytes; where they are enough, its storage keeps them."""
    return (max(nbytes(x), nbytes(out)),)


EUCLIDEAN = "aten/src/ATen/native/Distance.cpp, _euclidean_dist"


@scratch("cuda", "aten::_euclidean_dist", source=EUCLIDEAN, band=0.0)
def euclidean_distance(out: Any, one: Any, other: Any) -> Course:
    """The squares, norms and ones of each side, which become two matrices of as many columns and two more."""
    norms = [Alloc(nbytes(side) // int(side.shape[-1])) for side in (one, other)]
    wide = [Alloc(nbytes(side) + 2 * norm.nbytes) for side, norm in zip((one, other), norms)]
    sides = [(Alloc(nbytes(side)), norm, Free(first), norm) for side, norm, first in zip((one, other), norms, (0, 3))]
    first = (Alloc(nbytes(one)), wide[0], Free(6), Free(2), Free(1))
    return *sides[0], *sides[1], *first, wide[1], Free(5), Free(4), Result(0)


DISTANCE = "aten/src/ATen/native/Distance.cpp, cdist_impl and _cdist_backward; cuda/DistanceKernel.cu"


@scratch("cuda", "aten::_cdist_forward", source=DISTANCE, band=0.0)
def distance(out: Any, one: Any, other: Any, *_: Any) -> Course:
    """Contiguous copies of both sides, with the result's batch."""
    return *_sides(one, other), Result(0)


@scratch("cuda", "aten::_cdist_backward", source=DISTANCE, band=0.0)
def distance_backward(out: Any, grad: Any, one: Any, other: Any, p: float, distances: Any, *_: Any) -> Course:
    """Contiguous copies, and a gradient for each pair of rows, added up afterwards; none where distances are counts."""
    read = (copied(grad), copied(distances))
    pairs = Alloc(nbytes(out) * int(other.shape[-2]))
    return *_sides(one, other), *(Alloc(size) for size in read if size), Result(0), *((pairs,) if p else ())


def _sides(*sides: Any) -> Course:
    """Return the copies of matrices that are not contiguous in the batch of all."""
    batch = prod(torch.broadcast_shapes(*(side.shape[:-2] for side in sides)))
    sizes = [(batch * prod(side.shape[-2:]) * itemsize(side), side) for side in sides]
    return tuple(Alloc(size) for size, side in sizes if size != nbytes(side) or not side.is_contiguous())


@scratch(
    *("cuda", "aten::_pdist_backward"),
    source="aten/src/ATen/native/cuda/DistanceKernel.cu, pdist_backward_kernel_impl",
    band=0.0,
    by_capability=True,
)
def own_distance_backward(capability: Capability, out: Any, grad: Any, x: Any, p: float, *_: Any) -> Course:
    """For each row but one a gradient as large as the input, added up afterwards; zeros where distances are counts."""
    if not (p and grad.numel() and x.numel()):
        return ()
    rows = torch.empty((x.shape[0] - 1, *x.shape), dtype=x.dtype, device="meta")
    kind = Kind(*sum_like(x.dtype), x.dtype)
    return Result(0), Alloc(nbytes(rows)), *course(chip_of(capability), rows, [0], x.dtype, kind, first=1)
