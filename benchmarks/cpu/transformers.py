"""Plain transformers for the CPU memory benchmark, without a library's kernels or caches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Attention as in GPT and BERT; ``kind`` is "fused", or "plain" for separate products and softmax."""

    def __init__(self, width: int, heads: int, causal: bool, kind: str = "fused") -> None:
        super().__init__()
        self.heads, self.causal, self.kind = heads, causal, kind
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(w, dim=2))
        if self.kind == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-2, -1) * (w // self.heads) ** -0.5
            if self.causal:
                hidden = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            y = F.dropout(scores.softmax(-1), 0.1, self.training) @ v
        return self.proj(y.transpose(1, 2).reshape(b, s, w))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A transformer block, pre-norm as in GPT-2 or post-norm as in BERT."""

    def __init__(self, width: int, heads: int, first: bool, kind: str = "fused") -> None:
        super().__init__()
        self.first = first
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=first, kind=kind)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = x + self.drop(self.attention(self.norm1(x)))
            return x + self.drop(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]
        x = self.norm1(x + self.drop(self.attention(x)))
        return self.norm2(x + self.drop(self.mlp(x)))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """A language model with its loss, tied embeddings and learned positions; ``saves`` checkpoints the blocks."""

    def __init__(self, kind: str = "fused", saves: bool = False, words: int = 500, length: int = 64) -> None:
        super().__init__()
        width = 64
        self.saves = saves
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, 4, first=True, kind=kind) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.saves else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Llama(nn.Module):
    """A Llama: RMS norms, rotary embeddings as complex numbers, grouped queries and gated feed-forward layers."""

    def __init__(self, width: int = 64, heads: int = 4, pairs: int = 2, wide: int = 160, words: int = 500) -> None:
        super().__init__()
        size = width // heads
        self.heads, self.pairs, self.size = heads, pairs, size
        self.words = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, pairs * size, bias=False) for _ in range(2))
        self.gate, self.up = nn.Linear(width, wide, bias=False), nn.Linear(width, wide, bias=False)
        self.down, self.head = nn.Linear(wide, width, bias=False), nn.Linear(width, words, bias=False)

    def rotated(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).float()
        angles = torch.outer(places, 10000 ** (-torch.arange(0, self.size, 2, device=x.device) / self.size))
        turns = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        b, s, w = x.shape
        y = self.norms[0](x)
        q, k = self.rotated(self.q(y).view(b, s, self.heads, -1)), self.rotated(self.k(y).view(b, s, self.pairs, -1))
        v = self.v(y).view(b, s, self.pairs, -1)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, w))
        y = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return F.cross_entropy(self.head(self.norms[2](x)).flatten(0, 1), ids.flatten())


class ViT(nn.Module):
    """A vision transformer: patches of an image as tokens, and a class token."""

    def __init__(self, side: int = 32, patch: int = 8, width: int = 64, kind: str = "fused") -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.label = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, 4, first=True, kind=kind) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.label.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]
