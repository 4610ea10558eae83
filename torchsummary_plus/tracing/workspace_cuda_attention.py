"""CUDA: what the fused attention kernels take beside their results, read off the sources that torch ships."""

from __future__ import annotations

from typing import Any

from .workspace_registry import scratch

FLASH = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd"
EFFICIENT = "aten/src/ATen/native/transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h"
CUDNN = "aten/src/ATen/native/cudnn/MHA.cpp asks the graph for its workspace; taken to be that of flash attention"


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _shared(query: Any, key: Any) -> int:
    """Key and value gradients of every head, where heads share keys: they are added up afterwards."""
    batch, heads, _, width = query.shape
    nbytes: int = 2 * batch * key.shape[2] * heads * width * key.element_size()
    return 0 if key.shape[1] == heads else nbytes


@scratch("cuda", "aten::_scaled_dot_product_flash_attention_backward", source=FLASH, band=0.01)
def flash_backward(out: Any, grad: Any, query: Any, key: Any, *_: Any, **__: Any) -> int:
    """The gradient of the queries in fp32, a number a row, and with grouped heads every head's share of key and value.

    Rows are rounded up to 128, heads of up to 192 to 32, larger ones to 256.
    """
    batch, heads, rows, width = query.shape
    wide = _up(width, 32) if width <= 192 else 256
    held: int = batch * heads * _up(rows, 128) * (4 * wide + 4)
    return held + _shared(query, key)


@scratch("cuda", "aten::_scaled_dot_product_cudnn_attention_backward", source=CUDNN, band=0.5, calibrated=False)
def cudnn_backward(out: Any, grad: Any, query: Any, key: Any, *_: Any, **__: Any) -> int:
    """The gradient of the queries in fp32 and a number a row; with grouped heads as for flash attention."""
    batch, heads, rows, width = query.shape
    held: int = batch * heads * rows * (4 * width + 4)
    return held + _shared(query, key)


BLOCK = 64
"""Queries, and columns of a head, that a block of the memory-efficient backward sums up: its smallest tile."""


@scratch("cuda", "aten::_scaled_dot_product_efficient_attention_backward", source=EFFICIENT, band=0.1)
def efficient_backward(out: Any, grad: Any, query: Any, *_: Any, **__: Any) -> int:
    """The gradient of the queries in fp32, by tiles of 64 x 64 with 16 bytes of state each, and a number a row.

    The fp32 kernel does not compute the row sums itself: before it their products are there in full.
    """
    batch, heads, rows, width = query.shape
    tiles = batch * heads * (_up(rows, BLOCK) // BLOCK) * (_up(width, BLOCK) // BLOCK)
    delta: int = 4 * batch * heads * rows
    accumulated: int = tiles * (4 * BLOCK * BLOCK + 16)
    products: int = 4 * grad.numel() if grad.element_size() == 4 else 0
    return delta + max(accumulated, products)
