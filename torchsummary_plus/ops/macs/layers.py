"""Multiply-adds of layers that torch runs as one operator: convolutions, attention, transformer layers, RNNs.

A formula reads shapes, never values. Biases, masks, scales, softmax and activations fused into the operator are free.
Attention counts both products over the full square, causal or not, by query heads.
``result`` is what the operator returned; its own arguments follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from torch import Tensor

from ...live.packed import opened
from .registry import Formula, names, register_formula


def _convolved(elements: int, weight: Any) -> int | None:
    """Return the multiply-adds of elements with their taps: channels of a group x kernel volume."""
    tensor = _unpacked(weight)
    return None if tensor is None else elements * prod(tensor.shape[1:])


def _unpacked(weight: Any) -> Tensor | None:
    """Return a packed weight, or None if its library cannot unpack it."""
    if isinstance(weight, Tensor):
        return weight
    return next(iter(opened(weight) or ()), None)


@register_formula(
    *names("""
        aten:: cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution
        miopen_convolution_relu miopen_convolution_add_relu miopen_depthwise_convolution mkldnn_convolution
        _mps_convolution _nnpack_spatial_convolution _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d
        slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d
        quantized:: conv1d conv1d_relu conv1d_dynamic conv2d conv2d_relu conv2d_dynamic conv3d conv3d_relu
        conv3d_dynamic
        _quantized:: conv2d conv2d_relu conv3d conv3d_relu
    """)
)
def _convolution(result: Tensor, x: Tensor, weight: Any, *_: Any, **__: Any) -> int | None:
    """Each output element sums over its taps, including those on padding."""
    return _convolved(result.numel(), weight)


@register_formula(
    *names("""
        aten:: cudnn_convolution_transpose miopen_convolution_transpose _mps_convolution_transpose
        slow_conv_transpose2d slow_conv_transpose3d
        quantized:: conv_transpose1d conv_transpose1d_dynamic conv_transpose2d conv_transpose2d_dynamic
        conv_transpose3d conv_transpose3d_dynamic
        _quantized:: conv_transpose1d conv_transpose2d
    """)
)
def _transposed_convolution(result: Tensor, x: Tensor, weight: Any, *_: Any, **__: Any) -> int | None:
    """Each input element is scattered to its taps."""
    return _convolved(x.numel(), weight)


@register_formula("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def _either_convolution(result: Tensor, x: Tensor, weight: Tensor, *rest: Any, **_: Any) -> int | None:
    _bias, _stride, _padding, _dilation, transposed, *_others = rest
    return _transposed_convolution(result, x, weight) if transposed else _convolution(result, x, weight)


@register_formula("aten::convolution_backward")
def _convolution_backward(result: Any, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **_: Any) -> int | None:
    """The gradients of input and weight cost one forward each."""
    _biases, _stride, _padding, _dilation, transposed, _output_padding, _groups, mask = rest
    wanted: int = sum(mask[:2])
    forward = _transposed_convolution(grad, x, weight) if transposed else _convolution(grad, x, weight)
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


@register_formula("aten::_native_multi_head_attention", "aten::_triton_multi_head_attention")
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
    "quantized:: conv2d_add conv2d_add_relu":
        lambda result, x, added, weight, *_, **__: _convolved(result.numel(), weight),
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
    register_formula(*names(_words))(_formula)


@register_formula(
    *names("""
        quantized:: quantized_lstm_cell_dynamic quantized_gru_cell_dynamic quantized_rnn_tanh_cell_dynamic
        quantized_rnn_relu_cell_dynamic
    """)
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
