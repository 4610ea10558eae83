"""Rules for layers' operators: products, embeddings, gates, attention, recurrent layers, decompositions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...data.units import round_up
from ..backends import MAX, SUM, takes_fbgemm
from ..strides import contiguous
from .norms import statistics_of
from .pointwise import result
from .registry import (
    FLOATS,
    INDICES,
    Out,
    Outs,
    axis_of,
    dense_strides,
    floats_of,
    fresh,
    is_contiguous,
    numel,
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


@rule("embedding")
def embedding(weight: Tensor, indices: Tensor, *_: object) -> Out:
    """One row of the weight per index."""
    sure(weight.dim() == 2 and indices.dtype in INDICES)
    return fresh((*indices.shape, weight.shape[1]), weight.dtype)


@rule("_embedding_bag")
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, by_frequency: bool = False, mode: int = SUM, sparse: bool = False,
    weights: Tensor | None = None, has_last: bool = False, padding: int = -1,
) -> Outs:  # fmt: skip
    """On the CPU, the rows, each index's bag unless FBGEMM sums them, the bag sizes, and the indices of the maxima."""
    sure(weight.device.type == "cpu" and weight.dim() == 2 and indices.dim() == 1 == offsets.dim())
    bags, width = offsets.shape[0] - int(has_last), weight.shape[1]
    places = 0 if mode == SUM and takes_fbgemm(weight, weights, padding) else indices.shape[0]
    greatest = (bags, width) if mode == MAX else (0,)
    sizes = [(places,), tuple(offsets.shape), greatest]
    return [fresh((bags, width), weight.dtype), *(fresh(size, indices.dtype) for size in sizes)]


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
    """The output, on the CPU in the iterator's layout, and the boolean mask, both else in the input's."""
    sure(x.dtype in FLOATS and train and 0 < p < 1)
    alike = x.shape, preserved_strides(x), x.dtype
    return [result([x], x.dtype) if x.device.type == "cpu" else alike, (*alike[:2], torch.bool)]


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


_REALS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {real: kind for kind, real in _REALS.items()}


def column_major(shape: Sequence[int], dtype: torch.dtype) -> Out:
    """A new batch of matrices, each of which is column-major.

    >>> column_major((2, 3, 4), torch.float32)
    ((2, 3, 4), (12, 1, 3), torch.float32)
    """
    return tuple(shape), (*contiguous(shape)[:-2], 1, shape[-2]), dtype


@rule("_linalg_svd")
def svd(x: Tensor, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None) -> Outs:
    """Both bases column-major, and the singular values."""
    sure(x.device.type == "cpu" and compute_uv and x.dim() > 1 and numel(x.shape))
    sure(x.dtype in _REALS or x.dtype in _COMPLEX)
    *batch, rows, columns = x.shape
    rank = min(rows, columns)
    left, right = (rows, columns) if full_matrices else (rank, rank)
    values = fresh((*batch, rank), _REALS.get(x.dtype, x.dtype))
    return [column_major((*batch, rows, left), x.dtype), values, column_major((*batch, right, columns), x.dtype)]


@rule("linalg_eig")
def eig(x: Tensor) -> Outs:
    """The eigenvalues, and the eigenvectors column-major."""
    sure(x.device.type == "cpu" and x.dim() > 1 and numel(x.shape) and x.shape[-1] == x.shape[-2])
    sure(x.dtype in _REALS or x.dtype in _COMPLEX)
    dtype = _COMPLEX.get(x.dtype, x.dtype)
    return [fresh(x.shape[:-1], dtype), column_major(x.shape, dtype)]


@rule("geqrf")
def reflections(x: Tensor) -> Outs:
    """The reflections, column-major, and their factors; torch has no meta kernel."""
    sure(x.dim() >= 2 and (x.is_floating_point() or x.is_complex()))
    return [column_major(x.shape, x.dtype), fresh((*x.shape[:-2], min(x.shape[-2:])), x.dtype)]
