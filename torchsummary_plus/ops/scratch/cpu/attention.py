"""Scratch memory of attention on the CPU: the flash kernel's buffers per thread, and the fused layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, prod, sqrt
from typing import Any

import torch

from ...processor import has_fp16_tiles, has_tiles, is_half
from ..registry import AtMost, scratch
from ..sizes import NATIVE, elements, itemsize, nbytes, scalar
from . import half

FLASH = f"{NATIVE}cpu/FlashAttentionKernel.cpp, cpu_flash_attention and cpu_flash_attention_backward"
KEYS = 512
"""Keys per tile of the kernel."""


def _tile(queries: int, keys: int) -> tuple[int, int]:
    """Return the queries and keys of one tile."""
    rows = 256 if queries >= 768 else 64 if queries >= 192 else 32
    return min(rows, queries), min(KEYS, keys)


@scratch("cpu", "aten::_scaled_dot_product_flash_attention_for_cpu", source=FLASH, band=0.0)
def _flash(
    out: Any, query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, **kwargs: Any
) -> int:
    """Per thread, in float32: a tile of scores, and the maximum, sum and output of each of its rows."""
    rows, columns = _tile(query.shape[2], key.shape[2])
    size = max(4, itemsize(query))
    per_thread = (rows * columns + 2 * rows + rows * int(query.shape[3])) * size
    if not is_half(query.dtype):
        return torch.get_num_threads() * per_thread
    per_thread += rows * columns * itemsize(query)
    packed = _packed(query, key) if _packs(query, key, is_causal) else 0
    return torch.get_num_threads() * per_thread + packed


def _packs(query: Any, key: Any, is_causal: bool) -> bool:
    """Whether the kernel packs keys and values for matrix tiles: if a thread's products are many times as large."""
    is_bf16 = query.dtype is torch.bfloat16
    shortest, ratio = (64, 4) if is_bf16 else (16, 1)
    (*batch, queries, width), keys = map(int, query.shape), int(key.shape[2])
    has_kernel = half.takes(query.dtype) and (has_tiles() if is_bf16 else has_fp16_tiles())
    if not has_kernel or min(queries, keys) < shortest:
        return False
    rows, _ = _tile(queries, keys)
    tiles = ceil(prod(batch) * ceil(queries / rows) / torch.get_num_threads())
    return tiles * rows * (min(queries, keys) if is_causal else keys) * width >= ratio * elements(key)


def _packed(query: Any, key: Any) -> int:
    """Return the bytes of packed keys and values, padded to even sizes; per thread, of a tile of transposed keys."""
    queries, (*batch, keys, width) = int(query.shape[2]), map(int, key.shape)
    rows, columns = _tile(queries, keys)
    both = keys * (width + width % 2) + (keys + keys % 2) * width
    per_thread = columns * width + rows * (columns % 2) + (rows * (width + 1) if width % 2 else 0)
    return (prod(batch) * both + torch.get_num_threads() * per_thread) * itemsize(query)


@scratch("cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward", source=FLASH, band=0.0)
def _flash_backward(
    out: Any, grad: Any, query: Any, key: Any, *_: Any, scale: float | None = None, **kwargs: Any
) -> int | AtMost:
    """Per thread: a tile and its gradient; the row sums; the gradient in token order; beside them one product's."""
    rows, columns = _tile(query.shape[2], key.shape[2])
    size = max(4, itemsize(query))
    tiles = 2 * rows * columns * (size + (itemsize(query) if is_half(query.dtype) else 0))
    b, heads, s, width = grad.shape
    by_token = _is_dense((b, s, heads, width), [grad.stride(axis) for axis in (0, 2, 1, 3)])
    own = torch.get_num_threads() * tiles + rows * size + (0 if by_token else nbytes(grad))
    factor = 1 / sqrt(width) if scale is None else scale
    return half.beside(own, _tile_products(query.dtype, int(query.shape[2]), int(key.shape[2]), int(width), factor))


def _tile_products(dtype: torch.dtype, queries: int, keys: int, width: int, scale: float) -> int | AtMost:
    """Return the scratchpad of the largest product that gives a tile of gradients, of whole tiles and of the rest."""
    rows, columns = _tile(queries, keys)
    pads = []
    for q, k in product({rows, queries % rows or rows}, {columns, keys % columns or columns}):
        pads.append(half.of_sizes(dtype, k, width, q, (True, False), scale))
        pads.append(half.of_sizes(dtype, q, width, k, (False, False), scale))
    return max(pads, key=lambda pad: pad if isinstance(pad, int) else pad.nbytes)


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements are contiguous in the order of the axes."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


FUSED = f"{NATIVE}transformers/attention.cpp, native_multi_head_attention_cpu"


def _attention_peak(x: Any, heads: int, mask: Any, weights: bool, averaged: bool) -> int:
    """Return the peak inside the layer: queries, keys and values twice, then with the scores and their results."""
    own, tokens = nbytes(x), int(x.shape[1])
    scores = len(x) * heads * tokens * tokens * itemsize(x)
    peaks = [6 * own, 3 * own + scores, 5 * own + (scores if weights else 0)]
    if mask is not None:
        mask_bytes = 0 if mask.dtype is torch.bool and mask.is_contiguous() else elements(mask)
        peaks.append(3 * own + 2 * scores + mask_bytes)
    if weights and averaged:
        mean = scores // heads
        peaks += [4 * own + scores + mean, 4 * own + mean + scalar(x)]
    return max(peaks)


@scratch("cpu", "aten::_native_multi_head_attention", source=FUSED, band=0.0)
def _attention(
    out: Any, query: Any, key: Any, value: Any, embed_dim: int, heads: int, w: Any, b: Any, w_out: Any, b_out: Any,
    mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True, *_: Any, **kwargs: Any,
) -> int | AtMost:  # fmt: skip
    output_bytes = sum(nbytes(t) for t in out if t is not None)
    peak = _attention_peak(query, heads, mask, need_weights, average_attn_weights)
    return half.within(query.dtype, peak - output_bytes, peak + _products(query, embed_dim, 3 * embed_dim), 0.0)


def _products(x: Any, width: int, widest: int) -> int:
    """Return the largest scratchpad of the matrix products inside the layer."""
    return half.at_most(elements(x) // width, max(widest, int(x.shape[1])), widest).nbytes


@scratch("cpu", "aten::_transformer_encoder_layer_fwd", source=f"{NATIVE}transformers/transformer.cpp", band=0.0)
def _encoder_layer(
    out: Any, x: Any, embed_dim: int, heads: int, w: Any, b: Any, w_out: Any, b_out: Any, use_gelu: bool,
    norm_first: bool, eps: float, nw1: Any, nb1: Any, nw2: Any, nb2: Any, w1: Any, b1: Any, w2: Any, b2: Any,
    mask: Any = None, mask_type: Any = None,
) -> int | AtMost:  # fmt: skip
    """Attention, with the normalised input if the norm comes first; then the MLP's input, hidden layer and output."""
    own = nbytes(x)
    inside = _attention_peak(x, heads, mask, False, False)
    hidden = own // embed_dim * len(w1)
    statistics = 2 * own // embed_dim
    peak = max(own + inside, 3 * own + hidden) if norm_first else max(inside, 2 * own + hidden, 3 * own + statistics)
    return half.within(x.dtype, peak - own, peak + _products(x, embed_dim, max(3 * embed_dim, len(w1))), 0.0)
