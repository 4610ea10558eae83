"""CUDA: affine grids, sampling by cuDNN, columns of images, and max unpooling.

Source: aten/src/ATen/native/AffineGridGenerator.cpp and, in its folder cuda, Im2Col.cu, Col2Im.cu and MaxUnpooling.cu.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..registry import Alloc, Course, Result, reserve, scratch
from ..sizes import itemsize, nbytes
from .allocations import Allocations, copies

GRID = "aten/src/ATen/native/AffineGridGenerator.cpp"


@scratch("cuda", "aten::affine_grid_generator", source=GRID, band=0.0)
def affine_grid(out: Any, theta: Any, size: Any, align_corners: bool) -> Course:
    """The grid in homogeneous coordinates, each axis from a line of points; then its product with ``theta``."""
    if not prod(size):
        return ()
    axes, steps = len(size) - 2, Allocations()
    steps.buffer(nbytes(out) // axes * (axes + 1))
    for length in reversed(size[2:]):
        lines = 1 if align_corners or length == 1 else 3
        steps.free(*reversed([steps.buffer(length * itemsize(out)) for _ in range(lines)]))
    steps.result(0)
    return steps.course()


UNPOOLING = "aten/src/ATen/native/cuda/MaxUnpooling.cu"


@scratch("cuda", "aten::max_unpool2d", "aten::max_unpool3d", source=UNPOOLING, band=0.0)
def unpooled(out: Any, x: Any, places: Any, *_: Any) -> Course:
    """Contiguous copies, ahead of the result."""
    return *copies(x, places), Result(0)


@scratch("cuda", "aten::im2col", "aten::col2im", source="aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu", band=0.0)
def columns(out: Any, x: Any, *_: Any) -> Course:
    """The result starts with the input's bytes and is allocated anew if they are too few."""
    if nbytes(out) <= nbytes(x):
        return Result(0), *copies(x)
    return Alloc(nbytes(x)), *copies(x), Result(0)


@reserve("cuda", "aten::im2col", "aten::col2im", source="aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu", band=0.0)
def columns_storage(out: Any, x: Any, *_: Any) -> tuple[int, ...]:
    """The result starts with the input's bytes; where they are enough, its storage keeps them."""
    return (max(nbytes(x), nbytes(out)),)


SAMPLING = "aten/src/ATen/native/cudnn/GridSampler.cpp"


@scratch("cuda", "aten::cudnn_grid_sampler", "aten::cudnn_grid_sampler_backward", source=SAMPLING, band=0.0)
def sampled(out: Any, x: Any, grid: Any, grad: Any = None) -> Course:
    """Contiguous copies of a grid that is not, and of expanded images and gradients, ahead of the results."""
    read = [tensor for tensor in (x, grid, grad) if tensor is not None]
    results = map(Result, range(len(read) - 1))
    return *copies(*(tensor for tensor in read if tensor is grid or 0 in tensor.stride())), *results
