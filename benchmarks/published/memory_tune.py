"""Llama 3.2 3B and its training step as in torchtune's published measurement, late in 2024."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, DEPTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY, LENGTH = 3072, 28, 24, 8, 8192, 128_256, 4096
SIZE = WIDTH // HEADS


class Norm(nn.Module):
    """RMSNorm computed step by step in single precision, whatever the dtype around it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)
        return normed * self.scale


class Rotation(nn.Module):
    """Rotate pairs of numbers by the angles of their positions, which packed samples count separately."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.zeros(LENGTH, SIZE // 2, 2))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        angles = self.angles[positions].view(-1, pairs.shape[1], 1, pairs.shape[3], 2)
        a, b = pairs[..., 0], pairs[..., 1]
        cos, sin = angles[..., 0], angles[..., 1]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(3).type_as(x)


class Attention(nn.Module):
    """Attention that copies keys and values for each query head; a fused kernel keeps the same under any mask."""

    def __init__(self, rotation: Rotation) -> None:
        super().__init__()
        self.rotation = rotation
        self.q_proj, self.output_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, KV_HEADS * SIZE, bias=False) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)) for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rotation(q, positions), self.rotation(k, positions)
        k, v = (t.unsqueeze(3).expand(-1, -1, -1, HEADS // KV_HEADS, -1).flatten(2, 3) for t in (k, v))
        mixed = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return self.output_proj(mixed.transpose(1, 2).contiguous().flatten(2))


class Layer(nn.Module):
    def __init__(self, rotation: Rotation) -> None:
        super().__init__()
        self.attn_norm, self.attn, self.mlp_norm = Norm(), Attention(rotation), Norm()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = self.attn(self.attn_norm(x), positions) + x
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class TunedLlama(nn.Module):
    """Token ids and their positions, both (N, T) -> logits in single precision, with the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        rotation = Rotation()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(rotation) for _ in range(DEPTH))
        self.norm = Norm()

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, positions)
        return F.linear(self.norm(x), self.embedding.weight).float()


def tuned_llama() -> TunedLlama:
    """Return the model on ``meta``, in bfloat16 except for the angles."""
    with torch.device("meta"):
        model = TunedLlama().to(torch.bfloat16)
        rotation = model.layers[0].attn.rotation
        rotation.angles = rotation.angles.float()
    return model


def next_token_loss(scores: Tensor) -> Tensor:
    """Return the cross-entropy of every token; the choice of targets does not affect memory."""
    labels = torch.zeros(scores.shape[0] * scores.shape[1], dtype=torch.long, device=scores.device)
    return F.cross_entropy(scores.flatten(0, 1), labels, ignore_index=-100)
