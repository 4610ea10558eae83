"""Llama (Touvron et al. 2023, Grattafiori et al. 2024) at its published sizes, from 7 to 405 billion parameters.

Build one under ``torch.device("meta")`` to get shapes without weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu


@dataclass(frozen=True)
class Config:
    """The configuration of a Llama; with fewer ``kv_heads`` than ``heads``, query heads share keys and values."""

    width: int
    depth: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int = 32000
    rope_base: float = 10000.0


LLAMA2_7B = Config(width=4096, depth=32, heads=32, kv_heads=32, hidden=11008)
LLAMA2_13B = Config(width=5120, depth=40, heads=40, kv_heads=40, hidden=13824)
LLAMA2_70B = Config(width=8192, depth=80, heads=64, kv_heads=8, hidden=28672)
LLAMA3_8B = Config(width=4096, depth=32, heads=32, kv_heads=8, hidden=14336, vocabulary=128256, rope_base=500000.0)
LLAMA3_70B = Config(width=8192, depth=80, heads=64, kv_heads=8, hidden=28672, vocabulary=128256, rope_base=500000.0)
LLAMA3_405B = Config(width=16384, depth=126, heads=128, kv_heads=8, hidden=53248, vocabulary=128256, rope_base=500000.0)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + half]) of a head by its position's angle; x is (N, heads, T, size)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Causal self-attention with grouped queries (N, T, width) -> (N, T, width)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.size = config.width // config.heads
        self.q_proj = nn.Linear(config.width, config.heads * self.size, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(config.heads * self.size, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        projections = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in projections)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU: one projection gates the other."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the feed-forward, both pre-norm with a residual connection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.self_attn = Attention(config)
        self.post_attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_norm(x), cos, sin)
        return x + self.mlp(self.post_attention_norm(x))


class Llama(nn.Module):
    """Token ids (N, T) -> next-token logits (N, T, vocabulary)."""

    def __init__(self, config: Config = LLAMA2_7B) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        cos, sin = angles_of(self.config, ids.shape[1], x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


def angles_of(config: Config, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of position x frequency, each (length, head size / 2), in ``like``'s dtype and device."""
    size = config.width // config.heads
    frequencies = config.rope_base ** (-torch.arange(0, size, 2, device=like.device) / size)
    angles = torch.outer(torch.arange(length, device=like.device), frequencies)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def llama2_7b() -> Llama:
    return Llama(LLAMA2_7B)


def llama2_70b() -> Llama:
    return Llama(LLAMA2_70B)


def llama3_405b() -> Llama:
    return Llama(LLAMA3_405B)
