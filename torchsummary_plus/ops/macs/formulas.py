"""Multiply-adds of an operator call: by formula, 0 by convention, or unknown.

The convention is that of torch's flop counter and of fvcore, in multiply-adds (flops / 2): convolutions, matrix
products, attention, bilinear forms and recurrent cells count. Biases, masks, scales, softmax and activations fused
into an operator are free, as is everything else: a sum of k products is k multiply-adds.

A formula reads shapes and layouts, never values. ``result`` is what the operator returned; its own arguments follow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload

from ...live.weights import opened
from .free import is_free
from .registry import FORMULAS, Formula, base_name, register_formula


def multiply_adds(
    func: OpOverload | HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> int | None:
    """Return the multiply-adds of one operator call: 0 if it is free by convention, None if unknown.

    >>> import torch
    >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
    >>> multiply_adds(torch.ops.aten.mm.default, (a, b), {}, a @ b)
    24
    >>> multiply_adds(torch.ops.aten.relu.default, (a,), {}, a)
    0
    >>> multiply_adds(torch.ops.aten.linalg_pinv.default, (a,), {}, b) is None
    True
    """
    name, free = _classify(func)
    formula = FORMULAS.get(name)
    if formula is not None:
        count = formula(out, *args, **kwargs)
        return count if isinstance(count, int) else None
    in_flops = user_flop_formula(func)
    if in_flops is not None:
        return -(-int(in_flops(*args, **kwargs, out_val=out)) // 2)
    return 0 if free else None


@cache
def _classify(func: OpOverload | HigherOrderOperator) -> tuple[str, bool]:
    """Return the name that formulas are registered under, and whether the operator is free without one."""
    if isinstance(func, OpOverload):
        return base_name(func._schema.name), is_free(func)
    return f"higher_order::{func.name()}", False


COUNTER = "torch.utils.flop_counter"


def user_flop_formula(func: OpOverload | HigherOrderOperator) -> Callable[..., Any] | None:
    """Return the formula that a user registered for an operator with torch's ``register_flop_formula``, or None.

    It is called as torch calls it, with ``out_val`` for the result, and returns flops. torch's own formulas do not
    count, because they exist only once something has imported that module.
    """
    counter = sys.modules.get(COUNTER)
    if counter is None:
        return None
    registry: dict[Any, Callable[..., Any]] = counter.flop_registry
    formula = registry.get(getattr(func, "overloadpacket", func), registry.get(func))
    return None if getattr(formula, "__module__", COUNTER) == COUNTER else formula


# Products: of dense, packed, sparse or ragged matrices, and bilinear forms.

_SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
_PAIR_OF_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)


def product(result: Tensor, left: Tensor, right: Tensor) -> int | None:
    """Return the cost of a matrix or vector product: each element of ``result`` sums over the last axis of ``left``.

    An element that a sparse side stores meets a row or column of the dense side. None for two sparse sides, whose
    values decide, and for ragged ones whose summed axis and last axis of ``right`` are both ragged.
    """
    if left.layout in _SPARSE and right.layout in _SPARSE:
        return None
    if left.layout in _SPARSE:
        return _stored(left, result.shape[-1] if right.dim() > 1 else 1)
    if right.layout in _SPARSE:
        return _stored(right, prod(left.shape[:-1]) if right.dim() <= 2 else left.shape[-2])
    if left.is_nested or right.is_nested:
        summed, last = _regular(left), _regular(right)
        if summed is not None:
            return result.numel() * summed
        return None if last is None else left.numel() * last
    return result.numel() * _inner_size(left)


def _inner_size(left: Tensor) -> int:
    """Return how many products are summed up in one element of the result."""
    return left.shape[-1] * (2 if left.dtype == _PAIR_OF_FLOAT4 else 1)


def _stored(sparse: Tensor, each: int) -> int | None:
    """Return ``each`` times the elements that a sparse tensor stores; None if none, as every fake or meta tensor."""
    values = sparse._values() if sparse.layout == torch.sparse_coo else sparse.values()
    return values.numel() * each if values.numel() else None


def _regular(tensor: Tensor) -> int | None:
    """Return the length of the last axis; None if it is ragged."""
    try:
        length = tensor.size(-1)
    except RuntimeError:
        return None
    return length if isinstance(length, int) else None


@register_formula(
    """
    aten:: _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu
    _weight_int4pack_mm_with_scales_and_zeros _mixed_dtypes_linear _dyn_quant_matmul_4bit
    _quantized:: _wrapped_quantized_linear_prepacked wrapped_fbgemm_linear_fp16_weight wrapped_quantized_linear
    linear linear_dynamic
    quantized:: linear linear_relu linear_leaky_relu linear_tanh linear_dynamic linear_relu_dynamic
    linear_dynamic_fp16 linear_relu_dynamic_fp16 int4mm_packed_weight_cpu linear_dynamic_fp16_unpacked_weight
    linear_with_input_q_dq_qweight_dq_output_fp32 linear_with_input_q_dq_qweight_dq_relu_output_fp32
    mkldnn:: _linear_pointwise
    mkl:: _mkl_linear
    bitsandbytes:: gemm_4bit gemv_4bit int8_linear_matmul int8_scaled_mm int8_mixed_scaled_mm
    onednn:: qlinear_pointwise linear_dynamic_fp16 linear_relu_dynamic_fp16
    """
)
def _packed_right(result: Tensor | Sequence[Tensor], left: Tensor, *_: Any, **__: Any) -> int:
    """The right side is packed, so shapes come from the left side and the result, which is the first of several."""
    product = result if isinstance(result, Tensor) else result[0]
    return product.numel() * left.shape[-1]


@register_formula("aten:: _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2")
def _grouped_mm(result: Tensor, left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """One product per group. Two matrices are split along the summed axis, so the groups share its length."""
    if left.dim() == right.dim() == 2:
        return left.shape[0] * _inner_size(left) * right.shape[-1]
    return result.numel() * _inner_size(left)


@register_formula("aten::_trilinear")
def _trilinear(result: Tensor, a: Tensor, b: Tensor, c: Tensor, *axes: Any, **_: Any) -> int:
    """The building block of bilinear forms and their gradients: a sum of threefold products over the common shape."""
    shapes = [list(tensor.shape) for tensor in (a, b, c)]
    for shape, missing in zip(shapes, axes):
        for axis in sorted(missing):
            shape.insert(axis, 1)
    return prod(torch.broadcast_shapes(*shapes))


# Layers that torch runs as one operator. Attention counts both products over the full square, causal or not, by query
# heads.


def _convolved(side: Tensor, weight: Any) -> int | None:
    """Return the multiply-adds of a side's elements with their taps: channels of a group x kernel volume.

    Each output element sums over its taps, including those on padding; a transposed convolution scatters each input
    element to its taps.
    """
    tensor = _unpacked(weight)
    return None if tensor is None else side.numel() * prod(tensor.shape[1:])


def _unpacked(weight: Any) -> Tensor | None:
    """Return a packed weight, or None if its library cannot unpack it."""
    if isinstance(weight, Tensor):
        return weight
    return next(iter(opened(weight) or ()), None)


@register_formula("aten:: convolution _convolution convolution_overrideable")
def _convolution(result: Tensor, x: Tensor, weight: Tensor, *rest: Any, **_: Any) -> int | None:
    _bias, _stride, _padding, _dilation, transposed, *_others = rest
    return _convolved(x if transposed else result, weight)


@register_formula("aten::convolution_backward")
def _convolution_backward(result: Any, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **_: Any) -> int | None:
    """The gradients of input and weight cost one forward each."""
    _biases, _stride, _padding, _dilation, transposed, _output_padding, _groups, mask = rest
    wanted: int = sum(mask[:2])
    forward = _convolved(x if transposed else grad, weight)
    return None if forward is None else forward * wanted


def _matrices(weights: Sequence[Tensor]) -> int:
    """Return the elements of the weight matrices, which each token or time step is multiplied with; biases are free."""
    return sum(weight.numel() for weight in weights if weight.dim() == 2)


def _scores(
    query: Tensor, key: Tensor, value: Tensor, keys: int = -2, of_query: int = 1, of_value: int = 1
) -> int | None:
    """Return the cost of every query of every head against every key, by the widths of queries and values.

    ``keys`` is the axis of the keys' length. None for ragged batches, whose lengths are values.
    """
    if query.is_nested or key.is_nested:
        return None
    widths = of_query * query.shape[-1] + of_value * value.shape[-1]
    return prod(query.shape[:-1]) * key.shape[keys] * widths


@register_formula("aten:: _native_multi_head_attention _triton_multi_head_attention")
def _multi_head_attention(
    result: Any, query: Tensor, key: Tensor, value: Tensor, width: int, heads: int, *_: Any, **__: Any
) -> int:
    """Four projections of the embedding, two on the queries' side and two on the keys', and attention."""
    queries, keys = _lengths(query), _lengths(key)
    return 2 * width * (width * (sum(queries) + sum(keys)) + sum(q * k for q, k in zip(queries, keys)))


@register_formula("aten::_transformer_encoder_layer_fwd")
def _encoder_layer(result: Tensor, source: Tensor, width: int, heads: int, *rest: Any, **_: Any) -> int:
    """Each token is multiplied with the four weight matrices, and twice with every token of its sequence."""
    lengths = _lengths(source)
    of_attention, of_output, of_hidden, of_result = rest[0], rest[2], rest[11], rest[13]
    weights = _matrices([of_attention, of_output, of_hidden, of_result])
    return weights * sum(lengths) + 2 * width * sum(n * n for n in lengths)


def _lengths(batch: Tensor) -> list[int]:
    """Return the length of each sequence of a batch-first batch; a ragged batch keeps them with its shape."""
    if not batch.is_nested:
        return [batch.shape[1]] * batch.shape[0]
    return [int(n) for n in batch._nested_tensor_size()[:, 0].tolist()]


def _steps(x: Tensor) -> int:
    """Return the time steps of all sequences, packed or padded."""
    return prod(x.shape[:-1])


_FORMULAS: dict[str, Formula] = {
    """
    aten:: mm bmm mv dot vdot matmul linalg_matmul linear mkldnn_linear _int_mm _scaled_mm _scaled_mm_v2 _sparse_mm smm
    hspmm
    quantized:: matmul
    """: lambda result, left, right, *_, **__: product(result, left, right),
    "aten:: addmm _addmm_activation baddbmm addmv _sparse_addmm sspaddmm":
        lambda result, added, left, right, *_, **__: product(result, left, right),
    "aten:: addbmm": lambda result, added, left, right, **_: result.numel() * left.shape[0] * left.shape[2],
    # Every point of a regular grid, in homogeneous coordinates, times its image's matrix.
    "aten:: affine_grid_generator cudnn_affine_grid_generator":
        lambda result, theta, *_, **__: result.numel() * theta.shape[-1],
    "aten:: cudnn_affine_grid_generator_backward":
        lambda result, grad, *_, **__: grad.numel() * result.shape[-1],
    "aten:: _foreach_mm":
        lambda result, lefts, rights, **_: sum(out.numel() * left.shape[-1] for out, left in zip(result, lefts)),
    "aten:: _sparse_mm_reduce_impl": lambda result, left, right, reduce: product(result[0], left, right),
    "aten:: sparse_sampled_addmm": lambda result, mask, left, right, **_: _stored(mask, left.shape[-1]),
    # The gradients of input and weight cost one forward each.
    "aten:: linear_backward mkldnn_linear_backward":
        lambda result, x, grad, weight, wanted, **_: grad.numel() * weight.shape[-1] * sum(wanted[:2]),
    """
    aten:: cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution
    miopen_convolution_relu miopen_convolution_add_relu miopen_depthwise_convolution mkldnn_convolution
    _mps_convolution _nnpack_spatial_convolution _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d
    slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d
    quantized:: conv1d conv1d_relu conv1d_dynamic conv2d conv2d_relu conv2d_dynamic conv3d conv3d_relu conv3d_dynamic
    _quantized:: conv2d conv2d_relu conv3d conv3d_relu
    """: lambda result, x, weight, *_, **__: _convolved(result, weight),
    """
    aten:: cudnn_convolution_transpose miopen_convolution_transpose _mps_convolution_transpose slow_conv_transpose2d
    slow_conv_transpose3d
    quantized:: conv_transpose1d conv_transpose1d_dynamic conv_transpose2d conv_transpose2d_dynamic conv_transpose3d
    conv_transpose3d_dynamic
    _quantized:: conv_transpose1d conv_transpose2d
    """: lambda result, x, weight, *_, **__: _convolved(x, weight),
    "quantized:: conv2d_add conv2d_add_relu":
        lambda result, x, added, weight, *_, **__: _convolved(result, weight),
    # A convolution of time x batch x channels; its weight is kernel x input channels x output channels.
    "aten:: conv_tbc": lambda result, x, weight, *_, **__: result.numel() * prod(weight.shape[:2]),
    """
    aten:: _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math_for_mps
    _triton_scaled_dot_attention
    higher_order:: flex_attention
    """: lambda result, query, key, value, *_, **__: _scores(query, key, value),
    # The scores are recomputed; then follow the gradients of query and key, of the scores, and of the value.
    """
    aten:: _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_fused_attention_overrideable_backward
    """: lambda result, grad, query, key, value, *_, **__: _scores(query, key, value, of_query=3, of_value=2),
    # Batch x length x heads x width; unknown for concatenated sequences or paged keys, whose lengths are values.
    "aten:: _flash_attention_forward": lambda result, query, key, value, starts, *_, block_table=None, **__: (
        None if starts is not None or block_table is not None else _scores(query, key, value, keys=1)),
    "aten:: _efficient_attention_forward": lambda result, query, key, value, bias, starts, *_, **__: (
        None if starts is not None else _scores(query, key, value, keys=1)),
    "aten:: _cudnn_rnn miopen_rnn": lambda result, x, weights, *_, **__: _steps(x) * _matrices(weights),
    # The gradients of the inputs always, those of the weights on request; each costs one forward.
    "aten:: _cudnn_rnn_backward miopen_rnn_backward":
        lambda result, x, weights, *rest, **_: _steps(x) * _matrices(weights) * (2 if rest[-1][3] else 1),
    # One layer in one direction.
    "aten:: mkldnn_rnn_layer":
        lambda result, x, of_input, of_state, *_, **__: _steps(x) * _matrices([of_input, of_state]),
    "aten:: mkldnn_rnn_layer_backward":
        lambda result, x, of_input, of_state, *_, **__: 2 * _steps(x) * _matrices([of_input, of_state]),
}  # fmt: skip
for _words, _formula in _FORMULAS.items():
    register_formula(_words)(_formula)


@register_formula(
    """
    quantized:: quantized_lstm_cell_dynamic quantized_gru_cell_dynamic quantized_rnn_tanh_cell_dynamic
    quantized_rnn_relu_cell_dynamic
    """
)
def _cell(result: Any, x: Tensor, state: Any, of_input: Any, of_state: Any, *_: Any, **__: Any) -> int | None:
    inputs, states = _unpacked(of_input), _unpacked(of_state)
    return None if inputs is None or states is None else _steps(x) * _matrices([inputs, states])


def _quantized_layers(gates: int, result: Sequence[Tensor], x: Tensor, *_: Any, **__: Any) -> int:
    """Packed weights have no shape; the output (... x directions * width) and states (layers * directions x ...) do."""
    output, states = result[:2]
    width = states.shape[-1]
    directions = output.shape[-1] // width
    layers = states.shape[0] // directions
    inputs = x.shape[-1] + (layers - 1) * directions * width
    return _steps(x) * gates * width * directions * (inputs + layers * width)


register_formula("aten::quantized_lstm")(partial(_quantized_layers, 4))
register_formula("aten::quantized_gru")(partial(_quantized_layers, 3))
