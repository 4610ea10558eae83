"""Multiply-adds of products: of dense, packed, sparse or ragged matrices, and of bilinear forms.

A formula reads shapes and layouts, never values. A sum of k products is k multiply-adds; biases, scales and
activations fused into the operator are free. ``result`` is what the operator returned; its own arguments follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from .registry import Formula, names, register_formula

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
    *names("""
        aten:: mm bmm mv dot vdot matmul linalg_matmul linear mkldnn_linear _int_mm _scaled_mm _scaled_mm_v2
        _sparse_mm smm hspmm
        quantized:: matmul
    """)
)
def _left_right(result: Tensor, left: Tensor, right: Tensor, *_: Any, **__: Any) -> int | None:
    return product(result, left, right)


@register_formula(
    *names("""
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
    """)
)
def _packed_right(result: Tensor | Sequence[Tensor], left: Tensor, *_: Any, **__: Any) -> int:
    """The right side is packed, so shapes come from the left side and the result, which is the first of several."""
    product = result if isinstance(result, Tensor) else result[0]
    return product.numel() * left.shape[-1]


_FORMULAS: dict[str, Formula] = {
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
}  # fmt: skip
for _words, _formula in _FORMULAS.items():
    register_formula(*names(_words))(_formula)


@register_formula("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
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
