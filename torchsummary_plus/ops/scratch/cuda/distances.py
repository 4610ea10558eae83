"""CUDA: scratch memory of distances between rows, and between two tensors."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ....data.capability import Capability
from ...dtypes import result_type
from ..registry import Alloc, Course, Result, scratch
from ..sizes import itemsize, nbytes
from .allocations import Allocations, copies, joined
from .chips import chip_of
from .reductions import course, magnitudes, sum_course

EUCLIDEAN = "aten/src/ATen/native/Distance.cpp, _euclidean_dist"


@scratch("cuda", "aten::_euclidean_dist", source=EUCLIDEAN, band=0.0)
def euclidean_distance(out: Any, x: Any, y: Any) -> Course:
    """Squares, norms and ones of each side, then two matrices of a side's columns and two more, and their product.

    ``[-2 x, norm of x, ones] @ [y, ones, norm of y].T``
    """
    steps = Allocations()
    norm, ones = _norm_and_ones(steps, x)
    other_norm, other_ones = _norm_and_ones(steps, y)
    scaled = steps.buffer(nbytes(x))
    for side, parts in ((x, (scaled, ones, norm)), (y, (other_ones, other_norm))):
        steps.buffer(nbytes(side) + 2 * _norm_bytes(side))
        steps.free(*parts)
    steps.result(0)
    return steps.course()


def _norm_and_ones(steps: Allocations, side: Any) -> tuple[int, int]:
    """Allocate the norm of each row of a side, by its squares, and as many ones; return the two buffers."""
    squares, norm = steps.buffer(nbytes(side)), steps.buffer(_norm_bytes(side))
    steps.free(squares)
    return norm, steps.buffer(_norm_bytes(side))


def _norm_bytes(side: Any) -> int:
    return nbytes(side) // int(side.shape[-1])


DISTANCE = "aten/src/ATen/native/Distance.cpp, cdist_impl and _cdist_backward; cuda/DistanceKernel.cu"


@scratch("cuda", "aten::_cdist_forward", source=DISTANCE, band=0.0)
def distance(out: Any, x: Any, y: Any, *_: Any) -> Course:
    """Contiguous copies of both sides, with the result's batch."""
    return *_sides(x, y), Result(0)


@scratch("cuda", "aten::_cdist_backward", source=DISTANCE, band=0.0)
def distance_backward(out: Any, grad: Any, x: Any, y: Any, p: float, distances: Any, *_: Any) -> Course:
    """Contiguous copies, and a gradient for each pair of rows, added up afterwards; none where distances are counts."""
    pairs = (Alloc(nbytes(out) * int(y.shape[-2])),) if p else ()
    return *_sides(x, y), *copies(grad, distances), Result(0), *pairs


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
    return joined((Result(0), Alloc(nbytes(rows))), sum_course(chip_of(capability), rows, [0]))


@scratch("cuda", "aten::dist", source="aten/src/ATen/native/LinearAlgebra.cpp", band=0.0, by_capability=True)
def norm_of_difference(capability: Capability, out: Any, x: Any, other: Any, *_: Any) -> Course:
    """The difference, whose norm is the result."""
    dtype = result_type(x, other)
    difference = torch.empty(torch.broadcast_shapes(x.shape, other.shape).numel(), dtype=dtype, device="meta")
    norm = course(chip_of(capability), difference, [0], out.dtype, magnitudes(dtype))
    return joined((Alloc(nbytes(difference)), Result(0)), norm)
