"""Scratch memory of CPU image kernels: interpolation tables and columns of patches."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch

from ..registry import reserve, scratch
from ..sizes import INT64, NATIVE, copied, itemsize, nbytes, suggested


@scratch("cpu", "aten::im2col", source=f"{NATIVE}Im2Col.cpp", band=0.0)
def _im2col(out: Any, x: Any, *_: Any) -> int:
    """The result is allocated as large as the input, and again where that is too small."""
    return copied(x) + (nbytes(x) if nbytes(out) > nbytes(x) else 0)


@reserve("cpu", "aten::im2col", source=f"{NATIVE}Im2Col.cpp", band=0.0)
def _im2col_storage(out: Any, x: Any, *_: Any) -> tuple[int, ...]:
    return (max(nbytes(x), nbytes(out)),)


@scratch("cpu", "aten::col2im", source=f"{NATIVE}Col2Im.cpp", band=0.0)
def _col2im(out: Any, columns: Any, *_: Any) -> int:
    return copied(columns)


@reserve("cpu", "aten::col2im", source=f"{NATIVE}Col2Im.cpp", band=0.0)
def _col2im_storage(out: Any, columns: Any, *_: Any) -> tuple[int, ...]:
    """The result is allocated as large as the columns; its storage stays so."""
    return (max(nbytes(columns), nbytes(out)),)


POOLING = f"{NATIVE}FractionalMaxPool2d.cpp, FractionalMaxPool3d.cpp"
POOLS = [f"aten::fractional_max_pool{axes}d{way}" for axes in (2, 3) for way in ("", "_backward")]


@scratch("cpu", *POOLS, source=POOLING, band=0.0)
def _fractional_pool(out: Any, read: Any, *_: Any) -> int:
    """A contiguous copy of the image, or of the gradient."""
    return copied(read)


@scratch("cpu", "aten::affine_grid_generator", source=f"{NATIVE}AffineGridGenerator.cpp", band=0.0)
def _affine_grid(out: Any, theta: Any, size: Any, align_corners: bool) -> int:
    """The grid in homogeneous coordinates."""
    axes = len(size) - 2
    return nbytes(out) // axes * (axes + 1)


UPSAMPLING = f"{NATIVE}cpu/UpSampleKernel.cpp"
SMALL_IMAGE = 128
"""Height plus width up to which the channels-last kernels accept any image."""


def _upsampled(points: int) -> Callable[..., int]:
    """Return a formula for interpolation between ``points`` points per axis: an index and a weight for each.

    The channels-last kernels need no tables, but copies of tensors in other formats.
    """

    def formula(out: Any, x: Any, *_: Any, **kwargs: Any) -> int:
        layout = suggested(x)
        sizes: list[int] = list(out.shape[2:])
        if len(sizes) > 1 and points < 4:
            is_last = layout is not torch.contiguous_format
            if is_last and x.shape[1] > 3:
                return copied(x, layout)
            if len(sizes) == 2 and (sum(sizes) <= SMALL_IMAGE or (points == 2 and _is_colour_on_one_thread(x))):
                last = torch.channels_last
                return copied(x, layout) if is_last else copied(x, last) + copied(out, last)
        return points * sum(sizes) * (INT64 + itemsize(out))

    return formula


def _is_colour_on_one_thread(x: Any) -> bool:
    """Whether bilinear interpolation takes the channels-last kernel for an image of three channels, however large."""
    return x.shape[1] == 3 and x.is_floating_point() and torch.get_num_threads() == 1


def _antialiased(points: int) -> Callable[..., int]:
    """Width first, into an intermediate image; four indices and the weights per position of the current axis.

    Axes that keep their size are skipped.
    """

    def formula(out: Any, x: Any, size: Any, align_corners: bool, *_: Any) -> int:
        axes: list[int] = []
        for before, after in zip(x.shape[2:], out.shape[2:]):
            reach = ceil(points / 2 * max(1.0, before / after)) * 2 + 1
            if before != after:
                axes.append(after * (4 * INT64 + reach * itemsize(x)))
        between = nbytes(x) // int(x.shape[3]) * int(out.shape[3]) if len(axes) > 1 else 0
        return between + max(axes, default=0)

    return formula


for _names, _points in (
    (("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"), 1),
    (("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"), 1),
    (("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), 2),
    (("upsample_bicubic2d",), 4),
):
    scratch("cpu", *(f"aten::{name}" for name in _names), source=UPSAMPLING, band=0.0)(_upsampled(_points))
scratch("cpu", "aten::_upsample_bilinear2d_aa", source=UPSAMPLING, band=0.01)(_antialiased(2))
scratch("cpu", "aten::_upsample_bicubic2d_aa", source=UPSAMPLING, band=0.01)(_antialiased(4))
