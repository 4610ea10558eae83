"""The fast path of encoder layers, operator by operator as in its composite kernels: on a GPU, or under autocast.

Source: aten/src/ATen/native/transformers/transformer.cpp, ``transformer_encoder_layer_forward``; attention.cpp and
cuda/attention.cu, ``native_multi_head_attention_cuda``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from ...data.capability import Capability
from ...ops.scratch.cuda.attention_choice import Attention, attention_kernel

PAIRS, PADDING = 0, 1
"""The kinds of masks of two axes: of queries and keys, and of each sequence's keys."""
MOST_IN_A_WARP, MOST_BYTES = 1024, 4096
"""Rows up to this many scores and bytes have a masked kernel of their own; longer ones are filled, then normalised."""

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of query, key and value by the kernel that the GPU runs."""


def encoder_function(func: Any, capability: Capability, mix: Mix) -> Callable[..., Any] | None:
    """Return the GPU's implementation of a function of the fast path; None for any other function."""
    attend = partial(self_attention, capability, mix)
    if func is torch._transformer_encoder_layer_fwd:
        return partial(encoder_layer, attend)
    return attend if func is torch._native_multi_head_attention else None


def cast_encoder_layer(*args: Any, **kwargs: Any) -> Tensor:
    """Run an encoder layer on the CPU under autocast, which casts the arguments of each operator inside it."""
    return encoder_layer(torch._native_multi_head_attention, *args, **kwargs)


def encoder_layer(
    attend: Callable[..., Any], src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor,
    ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Run ``torch._transformer_encoder_layer_fwd``."""
    norms = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)

    def norm(x: Tensor, which: int) -> Tensor:
        return layer_norm(x, [embed_dim], *norms[which], eps)

    x = norm(src, 0) if norm_first else src
    projections = qkv_weight, qkv_bias, proj_weight, proj_bias
    x = attend(x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = norm(x, 0)
    residual = x
    if norm_first:
        x = norm(x, 1)
    flat = x.view(-1, embed_dim)
    hidden = torch._addmm_activation(ffn_bias_1, flat, ffn_weight_1.t(), use_gelu=use_gelu)
    x = torch.addmm(ffn_bias_2, hidden, ffn_weight_2.t()).view(src.shape)
    del hidden, flat
    x.add_(residual)
    return x if norm_first else norm(x, 1)


def self_attention(
    capability: Capability, mix: Mix, query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int,
    qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run ``torch._native_multi_head_attention``."""
    batch, length, width = len(query), query.shape[1], embed_dim // num_head
    heads = (batch, -1, num_head, width)
    if query is key is value and width % 8 == 0 and not need_weights and mask is None:
        parts = query.view(heads).transpose(1, 2)
        if attention_kernel(capability, Attention(parts, parts, parts)) != "math":
            del parts
            chunks = linear(query, qkv_weight, qkv_bias).chunk(3, -1)
            mixed = mix(*(chunk.view(heads).transpose(1, 2) for chunk in chunks))
            past = mixed.transpose(1, 2).reshape(batch, -1, embed_dim)
            del mixed
            return linear(past, proj_weight, proj_bias), None
        del parts
    packed = _packed(query, key, value, qkv_weight)
    q, k, v = packed.new_empty((3, batch * num_head, length, width)).unbind()
    del packed
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, num_head, length, length)
    weights = _softmax_in_place(scores) if mask is None else _masked_softmax(scores, mask, mask_type)
    del scores
    torch.bmm(weights.view(-1, length, length), v, out=q)
    mean_weights = weights if need_weights else None
    del weights
    turned = q.view(batch, num_head, length, width).permute(0, 2, 1, 3).contiguous().view(-1, embed_dim)
    projected = torch.addmm(proj_bias, turned, proj_weight.t()).view(batch, length, embed_dim)
    del turned
    if mean_weights is not None and average_attn_weights:
        mean_weights = mean_weights.sum(1)
        mean_weights /= num_head
    return projected, mean_weights


def _softmax_in_place(scores: Tensor) -> Tensor:
    """Source: ``masked_softmax`` in transformers/attention.cpp."""
    in_place: Tensor = torch.ops.aten._softmax.out(scores, -1, False, out=scores)
    return in_place


def _masked_softmax(scores: Tensor, mask: Tensor, mask_type: int | None) -> Tensor:
    """Source: ``masked_softmax`` there, and ``masked_softmax_cuda`` in cuda/SoftMax.cu."""
    mask = mask.bool()
    if mask_type == PAIRS:
        mask = mask.expand(scores.shape)
    weights = torch.empty_like(scores)
    length = scores.shape[-1]
    if length <= MOST_IN_A_WARP and length * scores.element_size() <= MOST_BYTES and mask.is_contiguous():
        return weights
    if mask_type == PADDING:
        mask = mask[:, None, None].expand(scores.shape)
    other = torch.softmax(scores.masked_fill(mask, -torch.inf), -1)
    del weights
    return other


def _packed(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Return the three projections side by side."""
    if query is key is value:
        return torch.matmul(query, weight.t())
    parts = [torch.matmul(x, part.t()) for x, part in zip((query, key, value), weight.chunk(3))]
    return torch.cat(parts, dim=2)
