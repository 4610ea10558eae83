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

    The channels-last kernels need no tables, but copies of tensors in other formats; that of volumes takes no such.
    """

    def formula(out: Any, x: Any, *_: Any, **kwargs: Any) -> int:
        layout = suggested(x)
        sizes: list[int] = list(out.shape[2:])
        if len(sizes) > 1 and points < 4:
            is_last = layout is not torch.contiguous_format
            if len(sizes) > 2:
                is_last = is_last and x.is_contiguous(memory_format=layout)
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


def _resized(points: int, antialias: bool) -> Callable[..., int]:
    """Return a formula for interpolation of one axis at a time, of bytes or antialiased: width first.

    Axes that keep their size are skipped. An axis needs four indices and the weights per position; the weights of
    images of bytes are computed in double precision.
    """

    def formula(out: Any, x: Any, *_: Any) -> int:
        of_bytes = x.dtype is torch.uint8
        tables: list[int] = []
        for before, after in zip(x.shape[2:], out.shape[2:]):
            reach = ceil(points / 2 * max(1.0, before / after)) * 2 + 1 if antialias else points
            if before != after:
                tables.append(after * (4 * INT64 + reach * (DOUBLE if of_bytes else itemsize(x))))
        if of_bytes and x.shape[1] <= PIXEL and torch.backends.cpu.get_cpu_capability() in VECTORS:
            return sum(tables) + (_buffers(out, x) if tables else 0)
        between = nbytes(x) // int(x.shape[3]) * int(out.shape[3]) if len(tables) > 1 else 0
        return between + max(tables, default=0)

    return formula


DOUBLE = 8
PIXEL = 4
"""Bytes of a pixel in the buffers of the vectorised kernel for bytes, and the channels that it takes at most."""
VECTORS = ("AVX2", "AVX512")


def _buffers(out: Any, x: Any) -> int:
    """Return the bytes of the vectorised kernel's buffers for one image, and of a copy of images in no known format.

    Source: ``UpSampleKernelAVXAntialias.h``.
    """
    last = torch.channels_last
    is_known = x.is_contiguous() or x.is_contiguous(memory_format=last)
    (rows, columns), (rows_after, columns_after) = x.shape[2:], out.shape[2:]
    is_packed = x.shape[1] >= 3 and (not is_known or x.is_contiguous(memory_format=last))
    is_packed_after = x.shape[1] >= 3 and out.is_contiguous(memory_format=last)
    is_wide, is_high = columns != columns_after, rows != rows_after
    pixel = int(x.shape[1]) if is_packed else PIXEL
    pixels = 0 if is_packed else rows * columns
    if is_wide and (is_high or not is_packed_after):
        pixels += rows * columns_after
    if is_high and not is_packed_after:
        pixels += rows_after * columns_after
    return int(pixels) * pixel + (0 if is_known else nbytes(x))


def _interpolated(points: int) -> Callable[..., int]:
    """Return a formula for bilinear and bicubic interpolation of images, which depends on the dtype."""
    of_bytes, of_numbers = _resized(points, antialias=False), _upsampled(points)

    def formula(out: Any, x: Any, *args: Any, **kwargs: Any) -> int:
        return (of_bytes if x.dtype is torch.uint8 else of_numbers)(out, x, *args, **kwargs)

    return formula


for _names, _points in (
    (("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"), 1),
    (("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"), 1),
    (("upsample_linear1d", "upsample_trilinear3d"), 2),
):
    scratch("cpu", *(f"aten::{name}" for name in _names), source=UPSAMPLING, band=0.0)(_upsampled(_points))
for _name, _points in (("bilinear2d", 2), ("bicubic2d", 4)):
    scratch("cpu", f"aten::upsample_{_name}", source=UPSAMPLING, band=0.0)(_interpolated(_points))
    scratch("cpu", f"aten::_upsample_{_name}_aa", source=UPSAMPLING, band=0.01)(_resized(_points, antialias=True))
