"""Rules for the operators of layers: products, convolutions, norms, pooling, resampling, attention, recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .rulebook import (
    FLOATS,
    INDICES,
    Out,
    Outs,
    Shape,
    axis_of,
    channels_last,
    contiguous,
    densely,
    fresh,
    in_format_of,
    is_channels_last,
    is_contiguous,
    is_dense,
    numel,
    preserved,
    rule,
    sure,
)

Sizes = Sequence[int]


def _floats(first: Tensor, *others: Tensor | None) -> torch.dtype:
    """The one floating dtype of all the tensors that are there."""
    dtype = first.dtype
    sure(dtype in FLOATS and all(other is None or other.dtype is dtype for other in others))
    return dtype


def _each(values: Sizes, count: int) -> Sizes:
    """One setting for each of ``count`` axes; a single one holds for all."""
    sure(len(values) in (1, count))
    return list(values) * count if len(values) == 1 else values


# Products


@rule("mm")
def mm(x: Tensor, y: Tensor) -> Out:
    sure(x.dim() == y.dim() == 2 and x.shape[1] == y.shape[0])
    return fresh((x.shape[0], y.shape[1]), _floats(x, y))


@rule("bmm")
def bmm(x: Tensor, y: Tensor) -> Out:
    sure(x.dim() == y.dim() == 3 and x.shape[0] == y.shape[0] and x.shape[2] == y.shape[1])
    return fresh((x.shape[0], x.shape[1], y.shape[2]), _floats(x, y))


@rule("addmm")
def addmm(bias: Tensor, x: Tensor, y: Tensor, **_: object) -> Out:
    return _plus(bias, mm(x, y))


@rule("baddbmm")
def baddbmm(bias: Tensor, x: Tensor, y: Tensor, **_: object) -> Out:
    return _plus(bias, bmm(x, y))


def _plus(bias: Tensor, product: Out) -> Out:
    shape, _, dtype = product
    sure(bias.dtype is dtype and bias.dim() <= len(shape))
    sure(all(a in (1, b) for a, b in zip(reversed(bias.shape), reversed(shape))))
    return product


@rule("linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Out:
    sure(x.dim() >= 2 and weight.dim() == 2 and x.shape[-1] == weight.shape[1])
    sure(bias is None or bias.shape == weight.shape[:1])
    return fresh((*x.shape[:-1], weight.shape[0]), _floats(x, weight, bias))


@rule("embedding")
def embedding(weight: Tensor, indices: Tensor, *_: object) -> Out:
    sure(weight.dim() == 2 and indices.dtype in INDICES)
    return fresh((*indices.shape, weight.shape[1]), weight.dtype)


# Convolutions


@rule("convolution")
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
) -> Out:
    axes = x.dim() - 2
    sure(axes in (1, 2, 3) and weight.dim() == x.dim() and numel(x.shape) and numel(weight.shape))
    entering, channels = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        entering, channels = channels, entering
    sure(x.shape[1] == entering and groups > 0 and weight.shape[0] % groups == 0)
    sure(bias is None or bias.shape == (channels,))
    settings = [_each(values, axes) for values in (stride, padding, dilation, output_padding)]
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
    return _convolved(x, weight, (x.shape[0], channels, *sizes), _floats(x, weight, bias))


def _convolved(x: Tensor, weight: Tensor, shape: Shape, dtype: torch.dtype) -> Out:
    """An image's channels come out innermost if those of the input or of the weight are, from oneDNN as from cuDNN.

    Here alone the rule follows the kernels, not the meta kernel, which in late versions of torch leaves the layout out.
    """
    if len(shape) == 3:
        sure(weight.stride() == contiguous(weight.shape))
        return fresh(shape, dtype)
    if not (is_channels_last(x) or is_channels_last(weight)):
        return fresh(shape, dtype)
    sure(len(shape) == 4 and dtype is not torch.float64)
    return shape, channels_last(shape), dtype


# Normalisation


def _statistics(x: Tensor) -> torch.dtype:
    """The dtype in which statistics are accumulated."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def _normalised(x: Tensor, *parameters: Tensor | None) -> Out:
    """The output of a normalisation by channels, which keeps its input's layout."""
    sure(x.dim() >= 2 and numel(x.shape) and x.dtype in FLOATS and is_dense(x))
    channels, dtypes = x.shape[1:2], (x.dtype, torch.float32)
    sure(all(p is None or (p.shape == channels and p.dtype in dtypes) for p in parameters))
    out = in_format_of(x, x.shape, x.dtype)
    sure(all(size == 1 or a == b for size, a, b in zip(x.shape, x.stride(), out[1])))
    return out


@rule("native_batch_norm", "_native_batch_norm_legit")
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    *_: float,
) -> Outs:
    sure(_has_variance(x) if training else mean is not None and var is not None)
    return _batch_normed(x, weight, bias, mean, var)


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, *_: float
) -> Outs:
    sure(training and _has_variance(x))
    return _batch_normed(x, weight, bias)


@rule("_native_batch_norm_legit_no_training")
def batch_norm_at_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, *_: float
) -> Outs:
    return _batch_normed(x, weight, bias, mean, var)


@rule("_batch_norm_with_update")
def batch_norm_with_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, *_: float
) -> Outs:
    sure(weight is not None and bias is not None and _has_variance(x))
    return [*_batch_normed(x, weight, bias, mean, var), fresh((0,), torch.uint8)]


@rule("cudnn_batch_norm")
def cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    *_: float,
) -> Outs:
    sure(mean is not None and var is not None and (_has_variance(x) or not training))
    out = _normalised(x, weight, bias, mean, var)
    statistics = fresh(weight.shape, _statistics(x)) if training else fresh((0,), weight.dtype)
    return [out, statistics, statistics, fresh((0,), torch.uint8)]


def _has_variance(x: Tensor) -> bool:
    """Whether each channel has two elements at least."""
    return numel(x.shape) > x.shape[1]


def _batch_normed(x: Tensor, *parameters: Tensor | None) -> Outs:
    statistics = fresh(x.shape[1:2], _statistics(x))
    return [_normalised(x, *parameters), statistics, statistics]


@rule("native_group_norm")
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, rest: int, groups: int, _: float
) -> Outs:
    sure(x.shape[:2] == (batch, channels) and numel(x.shape) == batch * channels * rest)
    sure(groups > 0 and channels % groups == 0)
    statistics = fresh((batch, groups), x.dtype)
    return [_normalised(x, weight, bias), statistics, statistics]


@rule("native_layer_norm")
def layer_norm(x: Tensor, size: Sizes, weight: Tensor | None, bias: Tensor | None, _: float) -> Outs:
    out, statistics = _over_last(x, size, weight, bias)
    return [out, statistics, statistics]


@rule("_fused_rms_norm")
def rms_norm(x: Tensor, size: Sizes, weight: Tensor | None, _: float | None) -> Outs:
    sure(not is_channels_last(x) and (weight is None or weight.dtype is x.dtype))
    return [*_over_last(x, size, weight)]


def _over_last(x: Tensor, size: Sizes, *parameters: Tensor | None) -> tuple[Out, Out]:
    """The output of a normalisation over the last axes, and one of its statistics."""
    shape, rank, dtypes = tuple(size), x.dim() - len(size), (x.dtype, torch.float32)
    sure(shape and rank >= 0 and x.shape[rank:] == shape and x.dtype in FLOATS and numel(x.shape))
    sure(all(p is None or (p.shape == shape and p.dtype in dtypes) for p in parameters))
    return fresh(x.shape, x.dtype), fresh((*x.shape[:rank], *(1,) * len(shape)), _statistics(x))


@rule("_softmax", "_log_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Out:
    sure(x.dtype in FLOATS and not half_to_float)
    axis_of(dim, x.dim())
    return fresh(x.shape, x.dtype)


@rule("_safe_softmax")
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Out:
    sure(dtype in (None, x.dtype))
    return softmax(x, dim, False)


# Pooling


def _is_image(x: Tensor, axes: int) -> bool:
    return x.dim() in (axes + 1, axes + 2) and numel(x.shape) > 0 and x.dtype in FLOATS


def _pooled(
    x: Tensor, axes: int, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> Shape:
    """How often a window fits along each axis; in ceil mode one that is cut off counts if it starts inside."""
    sure(_is_image(x, axes))
    settings = [_each(values, axes) for values in (kernel, stride or kernel, padding, dilation)]
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
    return _with_indices(x, 2, _pooled(x, 2, kernel, stride, padding, dilation, ceil_mode))


@rule("max_pool3d_with_indices")
def max_pool3d(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), dilation: Sizes = (1,), ceil_mode: bool = False
) -> Outs:
    return _with_indices(x, 3, _pooled(x, 3, kernel, stride, padding, dilation, ceil_mode))


def _with_indices(x: Tensor, axes: int, shape: Shape) -> Outs:
    return [_like_image(x, axes, shape, x.dtype), _like_image(x, axes, shape, torch.int64)]


def _like_image(x: Tensor, axes: int, shape: Shape, dtype: torch.dtype) -> Out:
    """A fresh image in the format of another, which counts for a batch only."""
    return in_format_of(x, shape, dtype) if x.dim() == axes + 2 else fresh(shape, dtype)


@rule("avg_pool2d")
def avg_pool2d(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), ceil_mode: bool = False, *settings: int | None
) -> Out:
    sure(settings[1:] != (0,))
    return _like_image(x, 2, _pooled(x, 2, kernel, stride, padding, (1,), ceil_mode), x.dtype)


@rule("avg_pool3d")
def avg_pool3d(
    x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = (0,), ceil_mode: bool = False, *settings: int | None
) -> Out:
    sure(settings[1:] != (0,))
    return fresh(_pooled(x, 3, kernel, stride, padding, (1,), ceil_mode), x.dtype)


@rule("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(x: Tensor, size: Sizes) -> Out:
    return in_format_of(x, _resized(x, 2, size), x.dtype)


@rule("_adaptive_avg_pool3d")
def adaptive_avg_pool3d(x: Tensor, size: Sizes) -> Out:
    return fresh(_resized(x, 3, size), x.dtype)


@rule("adaptive_max_pool2d")
def adaptive_max_pool2d(x: Tensor, size: Sizes) -> Outs:
    return _with_indices(x, 2, _resized(x, 2, size))


@rule("adaptive_max_pool3d")
def adaptive_max_pool3d(x: Tensor, size: Sizes) -> Outs:
    shape = _resized(x, 3, size)
    return [fresh(shape, x.dtype), fresh(shape, torch.int64)]


def _resized(x: Tensor, axes: int, size: Sizes) -> Shape:
    sure(_is_image(x, axes) and len(size) == axes and min(size) > 0)
    return (*x.shape[:-axes], *size)


# Resampling and padding


@rule("upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d")
def upsample1d(x: Tensor, size: Sizes, *_: object) -> Out:
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
    return _upsampled(x, 2, size)


@rule("upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d")
def upsample3d(x: Tensor, size: Sizes, *_: object) -> Out:
    return _upsampled(x, 3, size)


def _upsampled(x: Tensor, axes: int, size: Sizes) -> Out:
    sure(x.dim() == axes + 2)
    return in_format_of(x, _resized(x, axes, size), x.dtype)


@rule("pixel_shuffle")
def pixel_shuffle(x: Tensor, factor: int) -> Out:
    sure(x.dim() >= 3 and factor > 0 and not is_channels_last(x))
    *batch, channels, height, width = x.shape
    sure(channels % factor**2 == 0)
    return fresh((*batch, channels // factor**2, height * factor, width * factor), x.dtype)


@rule("pixel_unshuffle")
def pixel_unshuffle(x: Tensor, factor: int) -> Out:
    sure(x.dim() >= 3 and factor > 0 and not is_channels_last(x))
    *batch, channels, height, width = x.shape
    sure(height % factor == 0 == width % factor)
    return fresh((*batch, channels * factor**2, height // factor, width // factor), x.dtype)


@rule("constant_pad_nd")
def constant_pad(x: Tensor, padding: Sizes, *_: object) -> Out:
    sure(any(padding) and min(padding) >= 0)
    return in_format_of(x, _padded(x, padding), x.dtype)


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(x: Tensor, padding: Sizes) -> Out:
    pairs = zip(padding[::2], padding[1::2])
    sure(all(max(pair) < size for size, pair in zip(reversed(x.shape), pairs)))
    return replication_pad(x, padding)


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(x: Tensor, padding: Sizes) -> Out:
    sure(x.dim() == len(padding) // 2 + 2 and x.dtype in FLOATS and numel(x.shape) and not is_channels_last(x))
    return fresh(_padded(x, padding), x.dtype)


def _padded(x: Tensor, padding: Sizes) -> Shape:
    """The shape with two numbers added for each axis, from the last one on."""
    sizes = list(x.shape)
    sure(len(padding) % 2 == 0 and len(padding) <= 2 * len(sizes))
    for place, pad in enumerate(padding):
        sizes[-1 - place // 2] += pad
    sure(min(sizes) > 0)
    return tuple(sizes)


# Gates and dropout


@rule("glu")
def glu(x: Tensor, dim: int = -1) -> Out:
    axis = axis_of(dim, x.dim())
    sure(x.dim() and x.dtype in FLOATS and x.shape[axis] % 2 == 0)
    shape = (*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :])
    if is_contiguous(x):
        return fresh(shape, x.dtype)
    sure(numel(shape))
    return shape, densely(shape, [x.stride()]), x.dtype


@rule("native_dropout")
def native_dropout(x: Tensor, p: float, train: bool | None) -> Outs:
    sure(x.dtype in FLOATS and train and 0 < p < 1)
    return [(x.shape, preserved(x), x.dtype), (x.shape, preserved(x), torch.bool)]


# Attention and recurrent layers


@rule("_scaled_dot_product_flash_attention_for_cpu")
def attention_on_cpu(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Outs:
    batch, heads, length = _attention(query, key, value)
    sums = (batch, heads, length), (length * heads, 1, heads), _statistics(query)
    return [(query.shape, preserved(query), query.dtype), sums]


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Shape:
    """The batch, the heads and the query's length."""
    sure(query.dim() == key.dim() == value.dim() == 4 and _floats(query, key, value) and numel(query.shape))
    sure(key.shape == value.shape and numel(key.shape) and query.shape[1] % key.shape[1] == 0)
    sure(query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3])
    return query.shape[:3]


@rule("_transformer_encoder_layer_fwd")
def encoder_layer(source: Tensor, *_: object) -> Out:
    sure(source.dim() == 3 and numel(source.shape) and source.dtype in FLOATS)
    return source.shape, preserved(source), source.dtype


@rule("mkldnn_rnn_layer")
def mkldnn_rnn_layer(
    x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, hx: Tensor, cx: Tensor, *settings: Any
) -> Outs:
    size = settings[3]
    sure(x.dim() == 3 and x.dtype in FLOATS)
    out = fresh((*x.shape[:2], size), x.dtype)
    return [out, fresh(hx.shape, hx.dtype), fresh(cx.shape, cx.dtype), fresh((0,), torch.uint8)]
