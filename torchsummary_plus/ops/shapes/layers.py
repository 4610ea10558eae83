"""Rules for layers' operators: products, embeddings, norms, gates, attention, recurrent layers.

And for those that resize batches of images, signals and volumes: convolution, pooling, resampling, padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...data.units import round_up
from ...live.compat import since
from .. import backends
from ..backends import HALVES
from .registry import (
    FLOATS,
    INDICES,
    Out,
    Outs,
    Shape,
    Sizes,
    channels_last,
    contiguous,
    each,
    floats_of,
    fresh,
    in_format_of,
    is_channels_last,
    only_wanted,
    preserved_strides,
    rule,
    sure,
)
from .tensors import layout

# Products


def _product(name: str, added: str, rank: int) -> None:
    """Register the product of two matrices, or of two batches of them, alone and plus a broadcast addend."""

    def product(x: Tensor, y: Tensor) -> Out:
        sure(x.dim() == y.dim() == rank and x.shape[:-2] == y.shape[:-2] and x.shape[-1] == y.shape[-2])
        return fresh((*x.shape[:-1], y.shape[-1]), floats_of(x, y))

    def plus(bias: Tensor, x: Tensor, y: Tensor, **_: object) -> Out:
        shape, strides, dtype = product(x, y)
        sure(bias.dtype is dtype and bias.dim() <= rank)
        sure(all(a in (1, b) for a, b in zip(reversed(bias.shape), reversed(shape))))
        return shape, strides, dtype

    rule(name)(product)
    rule(added)(plus)


_product("mm", "addmm", 2)
_product("bmm", "baddbmm", 3)


@rule("_grouped_mm")
def grouped_mm(
    x: Tensor, y: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Out:
    """One product per group of rows, of columns or along the summed axis; without groups, one per batch element.

    The kernels pad rows to multiples of 16 bytes (aten/src/ATen/native/GroupedMMUtils.h). torch's meta kernel supports
    only bfloat16.
    """
    sure(bias is None and x.dtype is y.dtype and x.dim() in (2, 3) and y.dim() in (2, 3))
    sure(x.shape[-1] == y.shape[-2] and out_dtype in (None, x.dtype))
    rows, columns = x.shape[-2], y.shape[-1]
    step = round_up(columns * x.dtype.itemsize, 16) // x.dtype.itemsize
    if x.dim() != y.dim():
        sure(offs is not None)
        return (rows, columns), (step, 1), x.dtype
    groups = x.shape[0] if offs is None else offs.shape[0]
    sure((x.dim() == 3) == (offs is None) and (x.dim() == 2 or y.shape[0] == groups))
    return (groups, rows, columns), (rows * step, step, 1), x.dtype


@rule("embedding")
def embedding(weight: Tensor, indices: Tensor, *_: object) -> Out:
    """One row of the weight per index."""
    sure(weight.dim() == 2 and indices.dtype in INDICES)
    return fresh((*indices.shape, weight.shape[1]), weight.dtype)


# Normalisations: native/Normalization.cpp, group_norm.cpp, layer_norm.cpp, cudnn/BatchNorm.cpp and WeightNorm.cpp


def statistics_of(x: Tensor) -> torch.dtype:
    """Return the dtype in which statistics accumulate."""
    return torch.float32 if x.dtype in HALVES else x.dtype


def kept_statistics(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """Return the dtype of a norm's statistics: the CPU keeps halves beside parameters that are no float32."""
    is_mixed = weight is not None and weight.dtype is not x.dtype
    return statistics_of(x) if is_mixed or x.device.type != "cpu" else x.dtype


def _check_channels(x: Tensor, *parameters: Tensor | None) -> None:
    sure(x.dim() >= 2 and x.numel() and x.dtype in FLOATS)
    dtypes = (x.dtype, torch.float32)
    sure(all(p is None or (p.shape == x.shape[1:2] and p.dtype in dtypes) for p in parameters))


# Batch norm


@rule("native_batch_norm")
def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool,
    *_: float,
) -> Outs:  # fmt: skip
    """The output, and mean and inverse deviation per channel, which cuDNN's, if this stands for it, saves to train."""
    sure(training or (mean is not None and var is not None))
    _check_channels(x, weight, bias, mean, var)
    statistics, out = fresh(x.shape[1:2], kept_statistics(x, weight)), in_format_of(x, x.shape, x.dtype)
    if x.device.type == "cpu":
        out = fresh(x.shape, x.dtype) if x.is_contiguous() else out  # Also if it is channels-last as well.
    elif not backends.stands_for_cudnns(x, weight, bias, mean, var, training):
        out = x.shape, preserved_strides(x), x.dtype
    elif not training:
        statistics = fresh((0,), weight.dtype)  # type: ignore[union-attr]
    return [out, statistics, statistics]


@rule("cudnn_batch_norm")
def cudnn_batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool, *_: float
) -> Outs:
    """cuDNN's batch norm, with statistics only in training and an empty reserve."""
    _check_channels(x, weight, bias, mean, var)
    statistics = fresh(weight.shape, statistics_of(x)) if training else fresh((0,), weight.dtype)
    return [in_format_of(x, x.shape, x.dtype), statistics, statistics, fresh((0,), torch.uint8)]


@rule("native_batch_norm_backward")
def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, training: bool, eps: float, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias.

    On the CPU the input's keeps a format that it shares with the gradient. On CUDA it is row-major, unless cuDNN runs
    or the kernel reads rows of channels in training.
    """
    _check_channels(x, weight, mean, var)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    of_x = in_format_of(x, x.shape, x.dtype)
    if x.device.type == "cuda":
        if backends.is_native_backward(x, weight, training) and not (training and backends.is_rows(x)):
            of_x = fresh(x.shape, x.dtype)
    elif x.is_contiguous() and grad.is_contiguous() and is_channels_last(x) == is_channels_last(grad):
        of_x = fresh(x.shape, x.dtype)
    parameter = fresh(x.shape[1:2], x.dtype if weight is None else weight.dtype)
    return only_wanted((of_x, parameter, parameter), wanted)


@rule("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(x: Tensor, grad: Tensor, weight: Tensor, *_: Any) -> Outs:
    """The gradients of input, in its memory format, weight and bias."""
    _check_channels(x, weight)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    parameter = fresh(weight.shape, weight.dtype)
    return [in_format_of(x, x.shape, x.dtype), parameter, parameter]


# Batch norm with statistics from all ranks (``nn.SyncBatchNorm``): cuda/Normalization.cu; torch has no meta kernels


@rule("batch_norm_stats")
def batch_norm_stats(x: Tensor, eps: float) -> Outs:
    """Mean and inverse deviation of each channel."""
    sure(x.dim() >= 2 and x.dtype in FLOATS)
    return [fresh(x.shape[1:2], statistics_of(x))] * 2


@rule("batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(x: Tensor, mean: Tensor, invstd: Tensor, *_: Any) -> Outs:
    """The same of all ranks, whose statistics are the rows of ``mean`` and ``invstd``."""
    sure(mean.dim() == 2 and mean.shape == invstd.shape)
    return [fresh(mean.shape[1:], statistics_of(mean))] * 2


@rule("batch_norm_elemt")
def batch_norm_elemt(x: Tensor, *_: Any) -> Out:
    """The input normalised by given statistics."""
    sure(x.dim() >= 2 and x.dtype in FLOATS and (x.is_contiguous() or is_channels_last(x)))
    return in_format_of(x, x.shape, x.dtype)


rule("batch_norm_backward_elemt")(lambda grad, x, *_: batch_norm_elemt(x))


@rule("batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None,
    for_input: bool, for_weight: bool, for_bias: bool,
) -> Outs:  # fmt: skip
    """Two sums over each channel, and the gradients of weight and bias: in channels last both, whichever is wanted."""
    dtype = mean.dtype if weight is None else weight.dtype
    channels = x.shape[1:2]
    if x.stride(1) == 1:
        grads = fresh(channels if weight is not None else (0,), dtype)
        return [*[fresh(channels, mean.dtype)] * 2, grads, grads]
    sums = fresh(channels, mean.dtype) if for_input else None
    return [sums, sums, *(fresh(channels, dtype) if wanted else None for wanted in (for_weight, for_bias))]


# Groups, layers, weights


GROUPS_IN_ROWS = "2.14", "2.15"
"""The release whose group norm is row-major except on the CPU, and the next one; measured on 2.13, 2.14 and 2.15."""


def _grouped(x: Tensor) -> Out:
    """Return a group norm's output or its input's gradient."""
    first, beyond = GROUPS_IN_ROWS
    in_rows = x.device.type == "cuda" and since(first) and not since(beyond)
    return fresh(x.shape, x.dtype) if in_rows else in_format_of(x, x.shape, x.dtype)


@rule("native_group_norm")
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, rest: int, groups: int, _: float
) -> Outs:
    """The output, and mean and inverse deviation per sample and group."""
    _check_channels(x, weight, bias)
    sure(x.shape[:2] == (batch, channels) and x.numel() == batch * channels * rest)
    sure(groups > 0 and channels % groups == 0)
    statistics = fresh((batch, groups), x.dtype if x.device.type != "cpu" else kept_statistics(x, weight))
    return [_grouped(x), statistics, statistics]


@rule("native_group_norm_backward")
def group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    batch: int, channels: int, rest: int, groups: int, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias."""
    _check_channels(x, weight)
    sure(grad.shape == x.shape and grad.dtype is x.dtype)
    of_x, parameter = _grouped(x), fresh(x.shape[1:2], x.dtype if weight is None else weight.dtype)
    sure(x.device.type == "cpu" or of_x == fresh(x.shape, x.dtype))
    return only_wanted((of_x, parameter, parameter), wanted)


@rule("native_layer_norm")
def layer_norm(x: Tensor, size: Sizes, weight: Tensor | None, bias: Tensor | None, _: float) -> Outs:
    """The output, and mean and inverse deviation per row."""
    out, (shape, strides, _accumulated) = _over_last(x, size, weight, bias)
    statistics = shape, strides, kept_statistics(x, weight)
    return [out, statistics, statistics]


@rule("native_layer_norm_backward")
def layer_norm_backward(
    grad: Tensor, x: Tensor, size: Sizes, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None,
    wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """Row-major, whatever the input's layout."""
    sure(grad.shape == x.shape and grad.dtype is x.dtype and x.dtype in FLOATS and x.numel())
    parameter = fresh(tuple(size), x.dtype if weight is None else weight.dtype)
    return only_wanted((fresh(x.shape, x.dtype), parameter, parameter), wanted)


@rule("_fused_rms_norm")
def rms_norm(x: Tensor, size: Sizes, weight: Tensor | None, _: float | None) -> Outs:
    """The output and the inverse root mean square per row."""
    sure(not is_channels_last(x) and (weight is None or weight.dtype is x.dtype))
    return [*_over_last(x, size, weight)]


def _over_last(x: Tensor, size: Sizes, *parameters: Tensor | None) -> tuple[Out, Out]:
    """Return the output of a normalisation over the last axes, and one of its statistics."""
    shape, rank, dtypes = tuple(size), x.dim() - len(size), (x.dtype, torch.float32)
    sure(shape and rank >= 0 and x.shape[rank:] == shape and x.dtype in FLOATS and x.numel())
    sure(all(p is None or (p.shape == shape and p.dtype in dtypes) for p in parameters))
    return fresh(x.shape, x.dtype), fresh((*x.shape[:rank], *(1,) * len(shape)), statistics_of(x))


@rule("_weight_norm_interface")
def weight_norm(x: Tensor, scale: Tensor, dim: int = 0) -> Outs:
    """The weight, and its norms in float32 at least, which the meta kernel has in the weight's dtype."""
    sure(x.dim() and dim in (0, x.dim() - 1) and x.dtype is scale.dtype and x.dtype in FLOATS)
    sure(x.is_contiguous() and scale.is_contiguous() and x.numel())
    sure(scale.shape == tuple(size if axis == dim else 1 for axis, size in enumerate(x.shape)))
    return [fresh(x.shape, x.dtype), fresh(scale.shape, statistics_of(x))]


# Gates and dropout


@rule("native_dropout")
def native_dropout(x: Tensor, p: float, train: bool | None) -> Outs:
    """The output, on the CPU in the iterator's layout, and the boolean mask, both else in the input's."""
    sure(x.dtype in FLOATS and train and 0 < p < 1)
    alike = x.shape, preserved_strides(x), x.dtype
    return [(x.shape, layout(x.shape, [x]), x.dtype) if x.device.type == "cpu" else alike, (*alike[:2], torch.bool)]


# Attention and recurrent layers


@rule("_scaled_dot_product_flash_attention_for_cpu")
def attention_on_cpu(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Outs:
    """The output in the query's layout, and the log-sum-exp of each query's scores."""
    sure(query.dim() == key.dim() == 4 and floats_of(query, key, value) and key.shape == value.shape)
    batch, heads, length, size = query.shape
    sure(query.numel() and key.numel() and heads % key.shape[1] == 0)
    sure(key.shape[0] == batch and key.shape[3] == size)
    sums = (batch, heads, length), (length * heads, 1, heads), statistics_of(query)
    return [(query.shape, preserved_strides(query), query.dtype), sums]


@rule("_native_multi_head_attention")
def self_attention(
    query: Tensor, key: Tensor, value: Tensor, width: int, heads: int, qkv: Tensor, qkv_bias: Tensor, proj: Tensor,
    proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Outs:  # fmt: skip
    """The projected output and, if asked for, the weights of each head or their mean."""
    sure(query.dim() == 3 and query.shape == key.shape == value.shape and query.numel())
    sure(query.dtype in FLOATS and query.shape[2] == width and width % heads == 0)
    batch, length, _ = query.shape
    weights = (batch, length, length) if average_attn_weights else (batch, heads, length, length)
    out = query.shape, contiguous(query.shape), query.dtype
    return [out, (weights, contiguous(weights), query.dtype) if need_weights else None]


@rule("_transformer_encoder_layer_fwd")
def encoder_layer(source: Tensor, *_: object) -> Out:
    """The source's shape, in its layout."""
    sure(source.dim() == 3 and source.numel() and source.dtype in FLOATS)
    return source.shape, preserved_strides(source), source.dtype


@rule("mkldnn_rnn_layer_backward")
def mkldnn_rnn_layer_backward(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hx: Tensor, cx: Tensor, *_: Any
) -> Outs:
    """The gradients are in float32 whatever the dtype (mkldnn/RNN.cpp), and each bias has its own.

    The meta kernel returns one tensor for both biases and, before torch 2.13, gradients in the tensors' own dtypes.
    """
    tensors = (x, w_ih, w_hh, b_ih, b_hh, hx, cx)
    sure(x.numel() and all(tensor.dtype in FLOATS for tensor in tensors))
    return [fresh(tensor.shape, torch.float32) for tensor in tensors]


@rule("_cudnn_rnn")
def cudnn_rnn(
    x: Tensor, weights: Any, stride: int, buffer: Tensor | None, hx: Tensor, cx: Tensor | None, *settings: Any
) -> Outs:
    """The output, both final states, an empty reserve, whose size its scratch rule tells, and a buffer of all weights.

    Each call copies bfloat16 weights to such a buffer: ``flatten_parameters`` leaves them alone
    (``torch.backends.cudnn.is_acceptable``). The meta kernel returns the buffer it is given.
    """
    _, hidden, projected, _, batch_first, _, _, both, *_ = settings
    sure(not batch_first and x.dtype in FLOATS)
    width = (projected or hidden) * (2 if both else 1)
    copied = sum(weight.numel() for weight in weights) if x.dtype is torch.bfloat16 else 0
    states = [fresh(hx.shape, hx.dtype), fresh((0,), torch.float32) if cx is None else fresh(cx.shape, cx.dtype)]
    return [fresh((*x.shape[:-1], width), x.dtype), *states, fresh((0,), torch.uint8), fresh((copied,), x.dtype)]


GRU_GATES = 5
"""Values kept per unit: ``GRU_WORKSPACE_MULTIPLIER`` in aten/src/ATen/native/cuda/RNN.cu."""


@rule("_thnn_fused_gru_cell")
def fused_gru_cell(from_input: Tensor, hidden: Tensor, hx: Tensor, *biases: Tensor | None) -> Outs:
    """A GRU cell as one kernel, as on CUDA; before 2.15 torch has no meta kernel for it."""
    sure(hx.dim() == 2 and hx.dtype in FLOATS and hx.is_contiguous())
    sure(from_input.shape == hidden.shape == (hx.shape[0], 3 * hx.shape[1]))
    sure(all(bias is None or bias.shape == hidden.shape[1:] for bias in biases))
    return [fresh(hx.shape, hx.dtype), fresh((hx.shape[0], GRU_GATES * hx.shape[1]), hx.dtype)]


@rule("_thnn_fused_gru_cell_backward")
def fused_gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> Outs:
    """The gradients of both kinds of gates, of the state, and of the biases if there are any."""
    sure(grad.dim() == 2 and workspace.shape == (grad.shape[0], GRU_GATES * grad.shape[1]))
    gates = 3 * grad.shape[1]
    of_gates = fresh((grad.shape[0], gates), grad.dtype)
    of_bias = fresh((gates,), grad.dtype) if has_bias else None
    return [of_gates, of_gates, fresh(grad.shape, grad.dtype), of_bias, of_bias]


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
    sure(x.dim() == axes + 2 and axes < 4 and x.numel() and x.dtype in FLOATS)
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


rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")(lambda x, size: _image_in_format(x, _resized(x, size)))


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


@rule(*(f"replication_pad{axes}d" for axes in (1, 2, 3)))
def padded(x: Tensor, padding: Sizes, reflects: bool = False) -> Out:
    """The padded tensor of floats in its memory format; no rule for cropping, nor for channels-last on CUDA.

    ``padding`` has two numbers per axis, last axis first. The meta kernel ignores the format.
    """
    sure(x.dim() == len(padding) // 2 + 2 and x.dtype in FLOATS and x.numel() and min(padding) >= 0)
    sure(x.device.type != "cuda" or not is_channels_last(x))
    sizes = list(x.shape)
    for place, pad in enumerate(padding):
        axis = -1 - place // 2
        sure(pad < x.shape[axis] or not reflects)
        sizes[axis] += pad
    return in_format_of(x, tuple(sizes), x.dtype)


rule(*(f"reflection_pad{axes}d" for axes in (1, 2, 3)))(partial(padded, reflects=True))


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
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool,
    output_padding: Sizes, groups: int, *_: bool,
) -> Out:  # fmt: skip
    """A convolution or transposed convolution of 1 to 3 spatial axes, in the kernels' memory format.

    A result is channels-last if the input's or the weight's strides are, with oneDNN as with cuDNN: this rule follows
    the kernels, not the meta kernel, which ignores the layout in recent releases.
    """
    axes = x.dim() - 2
    sure(axes in (1, 2, 3) and weight.dim() == x.dim() and x.numel() and weight.numel())
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
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        by_onednn = backends.takes_onednn(x, weight, settings[0], settings[2], transposed, settings[3], groups)
        stays = x.dim() == 4 or by_onednn
    elif x.device.type == "cuda":
        stays = backends.keeps_last_on_cuda(x.dtype, settings[0], settings[3])
    else:
        sure(x.dtype is not torch.float64 and (x.dim() == 4 or groups == 1))
        stays = True
    return (shape, channels_last(shape), dtype) if stays else fresh(shape, dtype)


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
    sure(axes in (1, 2, 3) and weight.dim() == x.dim() and x.numel() and weight.numel())
    sure(bias is not None or not wanted[2])
    settings = [each(values, axes) for values in (stride, dilation, output_padding)]
    if x.device.type == "cuda":
        last = is_channels_last(x) or is_channels_last(weight)
        last = last and backends.keeps_last_on_cuda(x.dtype, settings[0], settings[2])
    elif axes == 3 and dtype in (torch.float32, torch.float64):
        last = is_channels_last(x) or is_channels_last(weight)
        last = last and backends.takes_onednn(x, weight, settings[0], settings[1], transposed, settings[2], groups)
    else:
        sure(all(tensor.is_contiguous() and not is_channels_last(tensor) for tensor in (x, weight)))
        last = False

    def like(tensor: Tensor) -> Out:
        """Return a new tensor of this shape and dtype in the chosen memory format."""
        return (tensor.shape, channels_last(tensor.shape), dtype) if last else fresh(tensor.shape, dtype)

    return only_wanted([like(x), like(weight), fresh(grad.shape[1:2], dtype)], wanted)
