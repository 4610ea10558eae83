"""Rules for operators that resize images, signals and volumes: pooling, resampling, padding."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import FLOATS, Out, Outs, Shape, Sizes, each, fresh, in_format_of, is_channels_last, numel, rule, sure

# Pooling


def _is_image(x: Tensor, axes: int) -> bool:
    return x.dim() in (axes + 1, axes + 2) and numel(x.shape) > 0 and x.dtype in FLOATS


def _pooled(
    x: Tensor, axes: int, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> Shape:
    """Return the windows along each axis; in ceil mode a partial window counts if it starts inside."""
    sure(_is_image(x, axes))
    settings = [each(values, axes) for values in (kernel, stride or kernel, padding, dilation)]
    counts = []
    for size, width, step, pad, gap in zip(x.shape[-axes:], *settings):
        sure(width > 0 and step > 0 and gap > 0 and 0 <= pad <= width // 2 and (axes < 3 or size >= width))
        count = (size + 2 * pad - gap * (width - 1) - 1 + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= size + pad:
            count -= 1
        sure(count > 0)
        counts.append(count)
    return (*x.shape[:-axes], *counts)


@rule("max_pool2d_with_indices")
def max_pool2d(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), dilation: Sizes = (1,), ceil_mode: bool = False
) -> Outs:
    """The pooled image in its memory format, with the indices of the maxima."""
    return _with_indices(x, 2, _pooled(x, 2, kernel, stride, padding, dilation, ceil_mode))


@rule("max_pool2d_with_indices_backward")
def max_pool2d_backward(
    grad: Tensor, x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool,
    indices: Tensor,
) -> Out:  # fmt: skip
    """The input's gradient, in the input's memory format."""
    pooled = _pooled(x, 2, kernel, stride, padding, dilation, ceil_mode)
    sure(x.dim() == 4 and grad.dtype is x.dtype and grad.shape == indices.shape == pooled)
    return in_format_of(x, x.shape, x.dtype)


@rule("max_pool3d_with_indices")
def max_pool3d(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), dilation: Sizes = (1,), ceil_mode: bool = False
) -> Outs:
    """The pooled volume, with the indices of the maxima."""
    return _with_indices(x, 3, _pooled(x, 3, kernel, stride, padding, dilation, ceil_mode))


def _with_indices(x: Tensor, axes: int, shape: Shape) -> Outs:
    return [_like_image(x, axes, shape, x.dtype), _like_image(x, axes, shape, torch.int64)]


def _like_image(x: Tensor, axes: int, shape: Shape, dtype: torch.dtype) -> Out:
    """Return a new image in the memory format of another, which is kept only for batches."""
    return in_format_of(x, shape, dtype) if x.dim() == axes + 2 else fresh(shape, dtype)


@rule("avg_pool2d")
def avg_pool2d(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), ceil_mode: bool = False, *settings: int | None
) -> Out:
    """The pooled image in its memory format; no rule for a divisor of 0."""
    sure(settings[1:] != (0,))
    return _like_image(x, 2, _pooled(x, 2, kernel, stride, padding, (1,), ceil_mode), x.dtype)


@rule("avg_pool3d")
def avg_pool3d(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), ceil_mode: bool = False, *settings: int | None
) -> Out:
    """The pooled volume, row-major; no rule for a divisor of 0."""
    sure(settings[1:] != (0,))
    return fresh(_pooled(x, 3, kernel, stride, padding, (1,), ceil_mode), x.dtype)


@rule("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(x: Tensor, size: Sizes) -> Out:
    """The image at the given size, in its memory format."""
    return in_format_of(x, _resized(x, 2, size), x.dtype)


@rule("_adaptive_avg_pool3d")
def adaptive_avg_pool3d(x: Tensor, size: Sizes) -> Out:
    """The volume at the given size, row-major."""
    return fresh(_resized(x, 3, size), x.dtype)


@rule("adaptive_max_pool2d")
def adaptive_max_pool2d(x: Tensor, size: Sizes) -> Outs:
    """The image at the given size, with the indices of the maxima."""
    return _with_indices(x, 2, _resized(x, 2, size))


@rule("adaptive_max_pool3d")
def adaptive_max_pool3d(x: Tensor, size: Sizes) -> Outs:
    """The volume at the given size, row-major, with the indices of the maxima."""
    shape = _resized(x, 3, size)
    return [fresh(shape, x.dtype), fresh(shape, torch.int64)]


def _resized(x: Tensor, axes: int, size: Sizes) -> Shape:
    sure(_is_image(x, axes) and len(size) == axes and min(size) > 0)
    return (*x.shape[:-axes], *size)


# Resampling and padding


@rule("upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d")
def upsample1d(x: Tensor, size: Sizes, *_: object) -> Out:
    """The signal at the given size."""
    return _upsampled(x, 1, size)


@rule(
    "upsample_nearest2d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "_upsample_nearest_exact2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
)
def upsample2d(x: Tensor, size: Sizes, *_: object) -> Out:
    """The image at the given size."""
    return _upsampled(x, 2, size)


@rule("upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d")
def upsample3d(x: Tensor, size: Sizes, *_: object) -> Out:
    """The volume at the given size."""
    return _upsampled(x, 3, size)


def _upsampled(x: Tensor, axes: int, size: Sizes) -> Out:
    sure(x.dim() == axes + 2)
    return in_format_of(x, _resized(x, axes, size), x.dtype)


@rule("pixel_shuffle")
def pixel_shuffle(x: Tensor, factor: int) -> Out:
    """The image with blocks of channels spread over height and width; no rule for channels-last."""
    sure(x.dim() >= 3 and factor > 0 and not is_channels_last(x))
    *batch, channels, height, width = x.shape
    sure(channels % factor**2 == 0)
    return fresh((*batch, channels // factor**2, height * factor, width * factor), x.dtype)


@rule("pixel_unshuffle")
def pixel_unshuffle(x: Tensor, factor: int) -> Out:
    """The image with pixels gathered into channels; no rule for channels-last."""
    sure(not is_channels_last(x))
    return fresh(gathered(x, factor), x.dtype)


def gathered(x: Tensor, factor: int) -> tuple[int, ...]:
    """Return the shape of an image with pixels gathered into channels."""
    sure(x.dim() >= 3 and factor > 0)
    *batch, channels, height, width = x.shape
    sure(height % factor == 0 == width % factor)
    return (*batch, channels * factor**2, height // factor, width // factor)


@rule("constant_pad_nd")
def constant_pad(x: Tensor, padding: Sizes, *_: object) -> Out:
    """The padded tensor in its memory format; no rule for cropping."""
    sure(any(padding) and min(padding) >= 0)
    return in_format_of(x, padded(x, padding), x.dtype)


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(x: Tensor, padding: Sizes) -> Out:
    """The padded tensor, row-major; the padding must be smaller than the axis."""
    check_reflected(x, padding)
    return replication_pad(x, padding)


def check_reflected(x: Tensor, padding: Sizes) -> None:
    """Decline padding that is not smaller than its axis."""
    pairs = zip(padding[::2], padding[1::2])
    sure(all(max(pair) < size for size, pair in zip(reversed(x.shape), pairs)))


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(x: Tensor, padding: Sizes) -> Out:
    """The padded tensor of floats, row-major; no rule for channels-last."""
    sure(x.dim() == len(padding) // 2 + 2 and x.dtype in FLOATS and numel(x.shape) and not is_channels_last(x))
    return fresh(padded(x, padding), x.dtype)


def padded(x: Tensor, padding: Sizes) -> Shape:
    """Return the padded shape; ``padding`` has two numbers per axis, last axis first."""
    sizes = list(x.shape)
    sure(len(padding) % 2 == 0 and len(padding) <= 2 * len(sizes))
    for place, pad in enumerate(padding):
        sizes[-1 - place // 2] += pad
    sure(min(sizes) > 0)
    return tuple(sizes)
