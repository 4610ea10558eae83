"""Rules for layers' operators: products, convolutions, normalisation, gates, attention, recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...data.rounding import round_up
from ...live.versions import since
from ..dtypes import HALVES
from ..strides import contiguous
from .registry import (
    FLOATS,
    INDICES,
    Out,
    Outs,
    Sizes,
    axis_of,
    dense_strides,
    floats_of,
    fresh,
    in_format_of,
    is_channels_last,
    is_contiguous,
    is_dense,
    numel,
    only_wanted,
    preserved_strides,
    rule,
    sure,
)

# Products


@rule("mm")
def mm(x: Tensor, y: Tensor) -> Out:
    """The product of two matrices."""
    sure(x.dim() == y.dim() == 2 and x.shape[1] == y.shape[0])
    return fresh((x.shape[0], y.shape[1]), floats_of(x, y))


@rule("bmm")
def bmm(x: Tensor, y: Tensor) -> Out:
    """The product of two batches of matrices."""
    sure(x.dim() == y.dim() == 3 and x.shape[0] == y.shape[0] and x.shape[2] == y.shape[1])
    return fresh((x.shape[0], x.shape[1], y.shape[2]), floats_of(x, y))


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


@rule("addmm")
def addmm(bias: Tensor, x: Tensor, y: Tensor, **_: object) -> Out:
    """The product of two matrices plus a broadcast addend."""
    return _plus(bias, mm(x, y))


@rule("baddbmm")
def baddbmm(bias: Tensor, x: Tensor, y: Tensor, **_: object) -> Out:
    """The product of two batches of matrices plus a broadcast addend."""
    return _plus(bias, bmm(x, y))


def _plus(bias: Tensor, product: Out) -> Out:
    shape, _, dtype = product
    sure(bias.dtype is dtype and bias.dim() <= len(shape))
    sure(all(a in (1, b) for a, b in zip(reversed(bias.shape), reversed(shape))))
    return product


@rule("linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Out:
    """The input with its last axis projected to the rows of the weight."""
    sure(x.dim() >= 2 and weight.dim() == 2 and x.shape[-1] == weight.shape[1])
    sure(bias is None or bias.shape == weight.shape[:1])
    return fresh((*x.shape[:-1], weight.shape[0]), floats_of(x, weight, bias))


@rule("embedding")
def embedding(weight: Tensor, indices: Tensor, *_: object) -> Out:
    """One row of the weight per index."""
    sure(weight.dim() == 2 and indices.dtype in INDICES)
    return fresh((*indices.shape, weight.shape[1]), weight.dtype)


# Normalisation


def statistics_of(x: Tensor) -> torch.dtype:
    """Return the dtype in which statistics accumulate."""
    return torch.float32 if x.dtype in HALVES else x.dtype


def kept_statistics(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """Return the dtype of a norm's statistics: the CPU keeps halves beside parameters that are no float32."""
    is_mixed = weight is not None and weight.dtype is not x.dtype
    return statistics_of(x) if is_mixed or x.device.type != "cpu" else x.dtype


def _normalised(x: Tensor, *parameters: Tensor | None) -> Out:
    """Return the output of a per-channel normalisation, which keeps its input's layout."""
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
    """The output, and mean and inverse deviation per channel."""
    sure(_has_variance(x) if training else mean is not None and var is not None)
    return _batch_normed(x, weight, bias, mean, var)


@rule("native_batch_norm_backward")
def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, training: bool, eps: float, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, in its memory format, weight and bias.

    The decomposition, which torch's fakes run, imports its compiler first (seconds), and always has the input's.
    """
    sure(weight is not None and save_mean is not None and save_invstd is not None)
    sure(grad.shape == x.shape and (is_contiguous(x) or is_channels_last(x)) and numel(x.shape))
    dtype, of_channels = floats_of(x, grad), fresh(x.shape[1:2], weight.dtype)  # type: ignore[union-attr]
    sure(x.dim() > 1 and weight.shape == x.shape[1:2] and weight.dtype in (dtype, torch.float32))  # type: ignore[union-attr]
    return only_wanted((in_format_of(x, x.shape, dtype), of_channels, of_channels), wanted)


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, *_: float
) -> Outs:
    """Batch norm in training without running statistics."""
    sure(training and _has_variance(x))
    return _batch_normed(x, weight, bias)


@rule("_native_batch_norm_legit_no_training")
def batch_norm_at_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, *_: float
) -> Outs:
    """Batch norm with running statistics; the saved statistics are empty."""
    return _batch_normed(x, weight, bias, mean, var)


@rule("_batch_norm_with_update")
def batch_norm_with_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, *_: float
) -> Outs:
    """Batch norm that updates its running statistics, with an empty reserve."""
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
    """cuDNN's batch norm, with statistics only in training and an empty reserve."""
    sure(mean is not None and var is not None and (_has_variance(x) or not training))
    out = _normalised(x, weight, bias, mean, var)
    statistics = fresh(weight.shape, statistics_of(x)) if training else fresh((0,), weight.dtype)
    return [out, statistics, statistics, fresh((0,), torch.uint8)]


def _has_variance(x: Tensor) -> bool:
    """Whether each channel has at least two elements."""
    return numel(x.shape) > x.shape[1]


def _batch_normed(x: Tensor, *parameters: Tensor | None) -> Outs:
    statistics = fresh(x.shape[1:2], kept_statistics(x, parameters[0]))
    return [_normalised(x, *parameters), statistics, statistics]


GROUPS_IN_ROWS = "2.14", "2.15"
"""The release whose group norm is row-major except on the CPU, and the next one; measured on 2.13, 2.14 and 2.15."""


@rule("native_group_norm")
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, rest: int, groups: int, _: float
) -> Outs:
    """The output, and mean and inverse deviation per sample and group."""
    sure(x.shape[:2] == (batch, channels) and numel(x.shape) == batch * channels * rest)
    sure(groups > 0 and channels % groups == 0)
    statistics = fresh((batch, groups), x.dtype if x.device.type != "cpu" else kept_statistics(x, weight))
    out = _normalised(x, weight, bias)
    return [fresh(x.shape, x.dtype) if has_groups_in_rows() else out, statistics, statistics]


def has_groups_in_rows() -> bool:
    """Whether group norm is row-major on this release, except on the CPU."""
    first, beyond = GROUPS_IN_ROWS
    return since(first) and not since(beyond)


@rule("native_layer_norm")
def layer_norm(x: Tensor, size: Sizes, weight: Tensor | None, bias: Tensor | None, _: float) -> Outs:
    """The output, and mean and inverse deviation per row."""
    out, (shape, strides, _accumulated) = _over_last(x, size, weight, bias)
    statistics = shape, strides, kept_statistics(x, weight)
    return [out, statistics, statistics]


@rule("_fused_rms_norm")
def rms_norm(x: Tensor, size: Sizes, weight: Tensor | None, _: float | None) -> Outs:
    """The output and the inverse root mean square per row."""
    sure(not is_channels_last(x) and (weight is None or weight.dtype is x.dtype))
    return [*_over_last(x, size, weight)]


def _over_last(x: Tensor, size: Sizes, *parameters: Tensor | None) -> tuple[Out, Out]:
    """Return the output of a normalisation over the last axes, and one of its statistics."""
    shape, rank, dtypes = tuple(size), x.dim() - len(size), (x.dtype, torch.float32)
    sure(shape and rank >= 0 and x.shape[rank:] == shape and x.dtype in FLOATS and numel(x.shape))
    sure(all(p is None or (p.shape == shape and p.dtype in dtypes) for p in parameters))
    return fresh(x.shape, x.dtype), fresh((*x.shape[:rank], *(1,) * len(shape)), statistics_of(x))


@rule("_softmax", "_log_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Out:
    """A row-major tensor like the input."""
    sure(x.dtype in FLOATS and not half_to_float)
    axis_of(dim, x.dim())
    return fresh(x.shape, x.dtype)


@rule("_safe_softmax")
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Out:
    """A row-major tensor like the input, with rows of -inf as zeros."""
    sure(dtype in (None, x.dtype))
    return softmax(x, dim, False)


# Gates and dropout


@rule("glu")
def glu(x: Tensor, dim: int = -1) -> Out:
    """The input with an axis halved, row-major or in the input's order of axes."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and x.dtype in FLOATS and x.shape[axis] % 2 == 0)
    shape = (*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :])
    if is_contiguous(x):
        return fresh(shape, x.dtype)
    sure(numel(shape))
    return shape, dense_strides(shape, [x.stride()]), x.dtype


@rule("native_dropout")
def native_dropout(x: Tensor, p: float, train: bool | None) -> Outs:
    """The output and the boolean mask, both in the input's layout."""
    sure(x.dtype in FLOATS and train and 0 < p < 1)
    return [(x.shape, preserved_strides(x), x.dtype), (x.shape, preserved_strides(x), torch.bool)]


# Attention and recurrent layers


@rule("_scaled_dot_product_flash_attention_for_cpu")
def attention_on_cpu(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Outs:
    """The output in the query's layout, and the log-sum-exp of each query's scores."""
    sure(query.dim() == key.dim() == 4 and floats_of(query, key, value) and key.shape == value.shape)
    batch, heads, length, size = query.shape
    sure(numel(query.shape) and numel(key.shape) and heads % key.shape[1] == 0)
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
    sure(query.dim() == 3 and query.shape == key.shape == value.shape and numel(query.shape))
    sure(query.dtype in FLOATS and query.shape[2] == width and width % heads == 0)
    batch, length, _ = query.shape
    weights = (batch, length, length) if average_attn_weights else (batch, heads, length, length)
    out = query.shape, contiguous(query.shape), query.dtype
    return [out, (weights, contiguous(weights), query.dtype) if need_weights else None]


@rule("_transformer_encoder_layer_fwd")
def encoder_layer(source: Tensor, *_: object) -> Out:
    """The source's shape, in its layout."""
    sure(source.dim() == 3 and numel(source.shape) and source.dtype in FLOATS)
    return source.shape, preserved_strides(source), source.dtype


@rule("mkldnn_rnn_layer")
def mkldnn_rnn_layer(
    x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, hx: Tensor, cx: Tensor, *settings: Any
) -> Outs:
    """The output, both final states, and an empty workspace, whose size is a reserve rule."""
    size = settings[3]
    sure(x.dim() == 3 and x.dtype in FLOATS)
    out = fresh((*x.shape[:2], size), x.dtype)
    return [out, fresh(hx.shape, hx.dtype), fresh(cx.shape, cx.dtype), fresh((0,), torch.uint8)]


@rule("mkldnn_rnn_layer_backward")
def mkldnn_rnn_layer_backward(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hx: Tensor, cx: Tensor, *_: Any
) -> Outs:
    """The gradients are in float32 whatever the dtype (mkldnn/RNN.cpp), and each bias has its own.

    The meta kernel returns one tensor for both biases and, before torch 2.13, gradients in the tensors' own dtypes.
    """
    tensors = (x, w_ih, w_hh, b_ih, b_hh, hx, cx)
    sure(numel(x.shape) and all(tensor.dtype in FLOATS for tensor in tensors))
    return [fresh(tensor.shape, torch.float32) for tensor in tensors]


@rule("_cudnn_rnn")
def cudnn_rnn(
    x: Tensor, weights: Any, stride: int, buffer: Tensor | None, hx: Tensor, cx: Tensor | None, *settings: Any
) -> Outs:
    """The output, both final states, an empty reserve, whose size is a reserve rule, and a buffer of all weights.

    Each call copies bfloat16 weights to such a buffer: ``flatten_parameters`` leaves them alone
    (``torch.backends.cudnn.is_acceptable``). The meta kernel returns the buffer it is given.
    """
    _, hidden, projected, _, batch_first, _, _, both, *_ = settings
    sure(not batch_first and x.dtype in FLOATS)
    width = (projected or hidden) * (2 if both else 1)
    copied = sum(numel(weight.shape) for weight in weights) if x.dtype is torch.bfloat16 else 0
    states = [fresh(hx.shape, hx.dtype), fresh((0,), torch.float32) if cx is None else fresh(cx.shape, cx.dtype)]
    return [fresh((*x.shape[:-1], width), x.dtype), *states, fresh((0,), torch.uint8), fresh((copied,), x.dtype)]


GRU_GATES = 5
"""Values kept per unit: ``GRU_WORKSPACE_MULTIPLIER`` in aten/src/ATen/native/cuda/RNN.cu."""


@rule("_thnn_fused_gru_cell")
def fused_gru_cell(from_input: Tensor, hidden: Tensor, hx: Tensor, *biases: Tensor | None) -> Outs:
    """A GRU cell as one kernel, as on CUDA; torch has no meta kernel for it."""
    sure(hx.dim() == 2 and from_input.shape == hidden.shape and hx.dtype in FLOATS and is_contiguous(hx))
    return [fresh(hx.shape, hx.dtype), fresh((hx.shape[0], GRU_GATES * hx.shape[1]), hx.dtype)]


@rule("_thnn_fused_gru_cell_backward")
def fused_gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> Outs:
    """The gradients of both kinds of gates, of the state, and of the biases if there are any."""
    sure(grad.dim() == 2)
    gates = 3 * grad.shape[1]
    of_gates = fresh((grad.shape[0], gates), grad.dtype)
    of_bias = fresh((gates,), grad.dtype) if has_bias else None
    return [of_gates, of_gates, fresh(grad.shape, grad.dtype), of_bias, of_bias]
