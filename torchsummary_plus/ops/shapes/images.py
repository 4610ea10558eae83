"""Rules for operators that resize batches of images, signals and volumes: convolution, pooling, resampling, padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from ..backends import keeps_last, keeps_last_on_cuda, takes_onednn
from ..strides import contiguous
from .registry import (
    FLOATS,
    Out,
    Outs,
    Shape,
    Sizes,
    channels_last,
    each,
    floats_of,
    fresh,
    in_format_of,
    is_channels_last,
    is_contiguous,
    numel,
    only_wanted,
    rule,
    sure,
)

# Pooling


def _pooled(x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool) -> Shape:
    """Return the windows along each axis; in ceil mode a partial window counts if it starts inside."""
    axes = _axes_of(x, kernel)
    sure(axes > 1)
    settings = [each(values, axes) for values in (kernel, stride or kernel, padding, dilation)]
    counts = []
    for size, width, step, pad, gap in zip(x.shape[2:], *settings):
        sure(width > 0 and step > 0 and gap > 0 and 0 <= pad <= width // 2 and (axes < 3 or size >= width))
        count = (size + 2 * pad - gap * (width - 1) - 1 + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= size + pad:
            count -= 1
        sure(count > 0)
        counts.append(count)
    return (*x.shape[:2], *counts)


def _axes_of(x: Tensor, settings: Sizes) -> int:
    """Return the axes of a batch that has one setting for each."""
    axes = len(settings)
    sure(x.dim() == axes + 2 and axes < 4 and numel(x.shape) and x.dtype in FLOATS)
    return axes


def _image_in_format(x: Tensor, shape: Shape) -> Out:
    """Return a new image in the memory format of another; a volume is row-major."""
    return in_format_of(x, shape, x.dtype) if x.dim() == 4 else fresh(shape, x.dtype)


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), dilation: Sizes = (1,), ceil_mode: bool = False
) -> Outs:
    """The pooled images in their memory format, with the indices of the maxima."""
    shape = _pooled(x, kernel, stride, padding, dilation, ceil_mode)
    return [in_format_of(x, shape, x.dtype), in_format_of(x, shape, torch.int64)]


@rule("max_pool2d_with_indices_backward")
def max_pool_backward(
    grad: Tensor, x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool,
    indices: Tensor,
) -> Out:  # fmt: skip
    """The input's gradient, in the input's memory format."""
    pooled = _pooled(x, kernel, stride, padding, dilation, ceil_mode)
    sure(grad.dtype is x.dtype and grad.shape == indices.shape == pooled)
    return in_format_of(x, x.shape, x.dtype)


@rule("avg_pool2d", "avg_pool3d")
def avg_pool(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), ceil_mode: bool = False, *settings: int | None
) -> Out:
    """The pooled images in their memory format, or volumes; no rule for a divisor of 0."""
    sure(settings[1:] != (0,))
    return _image_in_format(x, _pooled(x, kernel, stride, padding, (1,), ceil_mode))


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(x: Tensor, size: Sizes) -> Out:
    """The images, in their memory format, or the volumes at the given size."""
    return _image_in_format(x, _resized(x, size))


@rule("adaptive_max_pool2d")
def adaptive_max_pool(x: Tensor, size: Sizes) -> Outs:
    """The images at the given size, with the indices of the maxima."""
    shape = _resized(x, size)
    sure(x.dim() == 4)
    return [in_format_of(x, shape, x.dtype), in_format_of(x, shape, torch.int64)]


def _resized(x: Tensor, size: Sizes) -> Shape:
    _axes_of(x, size)
    sure(min(size) > 0)
    return (*x.shape[:2], *size)


# Resampling and padding


@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
@rule("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
@rule(*(f"{name}{axes}d" for name, axes in product(("upsample_nearest", "_upsample_nearest_exact"), (1, 2, 3))))
def upsample(x: Tensor, size: Sizes, *_: object) -> Out:
    """The signals, images or volumes at the given size."""
    return in_format_of(x, _resized(x, size), x.dtype)


@rule("pixel_shuffle")
def pixel_shuffle(x: Tensor, factor: int) -> Out:
    """The image with blocks of channels spread over height and width; no rule for channels-last on CUDA."""
    sure(x.dim() in (3, 4) and factor > 0 and numel(x.shape) and _keeps_format(x))
    *batch, channels, height, width = x.shape
    sure(channels % factor**2 == 0)
    return in_format_of(x, (*batch, channels // factor**2, height * factor, width * factor), x.dtype)


@rule("pixel_unshuffle")
def pixel_unshuffle(x: Tensor, factor: int) -> Out:
    """The image with pixels gathered into channels; on CUDA row-major (``math_pixel_unshuffle``, PixelShuffle.cpp)."""
    sure(x.dim() >= 3 and factor > 0 and numel(x.shape))
    *batch, channels, height, width = x.shape
    sure(height % factor == 0 == width % factor)
    shape = (*batch, channels * factor**2, height // factor, width // factor)
    return fresh(shape, x.dtype) if x.device.type == "cuda" else in_format_of(x, shape, x.dtype)


def _keeps_format(x: Tensor) -> bool:
    """Whether the result is sure to keep the memory format: for channels-last on the CPU alone."""
    return x.device.type != "cuda" or not is_channels_last(x)


@rule("constant_pad_nd")
def constant_pad(x: Tensor, padding: Sizes, *_: object) -> Out:
    """The padded tensor in its memory format; no rule for cropping."""
    sure(any(padding) and min(padding) >= 0)
    return in_format_of(x, _padded(x, padding), x.dtype)


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(x: Tensor, padding: Sizes) -> Out:
    """The padded tensor in its memory format; the padding must be smaller than the axis."""
    pairs = zip(padding[::2], padding[1::2])
    sure(all(max(pair) < size for size, pair in zip(reversed(x.shape), pairs)))
    return replication_pad(x, padding)


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(x: Tensor, padding: Sizes) -> Out:
    """The padded tensor of floats in its memory format; no rule for cropping, nor for channels-last on CUDA."""
    sure(x.dim() == len(padding) // 2 + 2 and x.dtype in FLOATS and numel(x.shape) and _keeps_format(x))
    sure(min(padding) >= 0)
    return in_format_of(x, _padded(x, padding), x.dtype)


def _padded(x: Tensor, padding: Sizes) -> Shape:
    """Return the padded shape; ``padding`` has two numbers per axis, last axis first."""
    sizes = list(x.shape)
    sure(len(padding) % 2 == 0 and len(padding) <= 2 * len(sizes))
    for place, pad in enumerate(padding):
        sizes[-1 - place // 2] += pad
    sure(min(sizes) > 0)
    return tuple(sizes)


# Sampling by cuDNN, which has no meta kernels: aten/src/ATen/native/cudnn/GridSampler.cpp


@rule("cudnn_grid_sampler")
def cudnn_grid_sampler(x: Tensor, grid: Tensor) -> Out:
    """The images sampled at the grid's points, row-major."""
    sure(x.dim() == grid.dim() == 4 and grid.shape[0] == x.shape[0] and grid.shape[3] == 2 and grid.dtype is x.dtype)
    return fresh((*x.shape[:2], *grid.shape[1:3]), x.dtype)


@rule("cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(x: Tensor, grid: Tensor, grad: Tensor) -> Outs:
    """The gradients of images and grid, row-major, both whichever is wanted."""
    sure(grad.shape == (*x.shape[:2], *grid.shape[1:3]))
    return [fresh(x.shape, x.dtype), fresh(grid.shape, grid.dtype)]


@rule("convolution", "_convolution")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    *_: bool,
) -> Out:
    """A convolution or transposed convolution of 1 to 3 spatial axes, in the kernels' memory format."""
    axes = x.dim() - 2
    sure(axes in (1, 2, 3) and weight.dim() == x.dim() and numel(x.shape) and numel(weight.shape))
    entering, channels = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        entering, channels = channels, entering
    sure(x.shape[1] == entering and groups > 0 and weight.shape[0] % groups == 0)
    sure(bias is None or bias.shape == (channels,))
    settings = [each(values, axes) for values in (stride, padding, dilation, output_padding)]
    sizes = []
    for size, kernel, step, pad, gap, extra in zip(x.shape[2:], weight.shape[2:], *settings):
        sure(step > 0 and gap > 0 and pad >= 0)
        reach = gap * (kernel - 1) + 1
        if transposed:
            sure(0 <= extra < max(step, gap))
            sizes.append((size - 1) * step - 2 * pad + reach + extra)
        else:
            sizes.append((size + 2 * pad - reach) // step + 1)
    sure(min(sizes) > 0)
    shape, dtype = (x.shape[0], channels, *sizes), floats_of(x, weight, bias)
    if axes == 1:
        sure(weight.stride() == contiguous(weight.shape))
        return fresh(shape, dtype)
    if not (is_channels_last(x) or is_channels_last(weight)):
        return fresh(shape, dtype)
    stays = _stays_last(x, weight, settings, transposed, groups)
    return (shape, channels_last(shape), dtype) if stays else fresh(shape, dtype)


def _stays_last(x: Tensor, weight: Tensor, settings: list[Sizes], transposed: bool, groups: int) -> bool:
    """Whether the result is channels-last: if the input's or the weight's strides are, with oneDNN as with cuDNN.

    This rule follows the kernels, not the meta kernel, which ignores the layout in recent releases.
    """
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        stride, _, dilation, output_padding = settings
        return keeps_last(x, weight, stride, dilation, transposed, output_padding, groups)
    if x.device.type == "cuda":
        return keeps_last_on_cuda(x.dtype, settings[0], settings[3])
    sure(x.dtype is not torch.float64 and (x.dim() == 4 or groups == 1))
    return True


@rule("convolution_backward")
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Sizes | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias.

    Row-major ones unless a tensor is channels-last; then channels-last by cuDNN and for volumes that oneDNN prefers so,
    always row-major on CUDA without cuDNN, and no rule otherwise.
    """
    axes, dtype = x.dim() - 2, floats_of(grad, x, weight)
    sure(axes in (1, 2, 3) and weight.dim() == x.dim() and numel(x.shape) and numel(weight.shape))
    sure(bias is not None or not wanted[2])
    settings = [each(values, axes) for values in (stride, dilation, output_padding)]
    if x.device.type == "cuda":
        last = is_channels_last(x) or is_channels_last(weight)
        last = last and keeps_last_on_cuda(x.dtype, settings[0], settings[2])
    elif axes == 3 and dtype in (torch.float32, torch.float64):
        last = is_channels_last(x) or is_channels_last(weight)
        last = last and takes_onednn(x, weight, settings[0], settings[1], transposed, settings[2], groups)
    else:
        sure(_are_rows(x, weight))
        last = False

    def like(tensor: Tensor) -> Out:
        """Return a new tensor of this shape and dtype in the chosen memory format."""
        return (tensor.shape, channels_last(tensor.shape), dtype) if last else fresh(tensor.shape, dtype)

    return only_wanted([like(x), like(weight), fresh(grad.shape[1:2], dtype)], wanted)


def _are_rows(*tensors: Tensor) -> bool:
    return all(is_contiguous(tensor) and not is_channels_last(tensor) for tensor in tensors)
