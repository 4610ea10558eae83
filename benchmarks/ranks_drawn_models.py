"""Random models for :mod:`benchmarks.ranks_drawn_cases`: attention, products and norms, some of odd sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.ranks_models import Attention

LENGTH = 32


@dataclass(frozen=True)
class Shape:
    """The structure of a model; ``kinds`` has a word for each layer."""

    width: int
    kinds: tuple[str, ...]
    hidden: int
    norm: str
    is_gated: bool
    has_bias: bool
    dropout: float
    classes: int
    reads_tokens: bool
    is_tied: bool
    has_buffer: bool
    has_unused: bool
    frozen: str
    checkpoints: str
    repeats: int

    @classmethod
    def draw(cls, draw: Random) -> Shape:
        width = draw.choice((48, 64, 96, 100))
        reads_tokens = draw.random() < 0.6
        return cls(
            width=width,
            kinds=tuple(draw.choice(("both", "both", "attention", "dense")) for _ in range(draw.choice((1, 2, 3, 4)))),
            hidden=draw.choice((2 * width, 3 * width, width + 7, 150)),
            norm=draw.choice(("rms", "layer", "none")),
            is_gated=draw.random() < 0.5,
            has_bias=draw.random() < 0.5,
            dropout=draw.choice((0.0, 0.0, 0.1)),
            classes=draw.choice((10, 99, 512)),
            reads_tokens=reads_tokens,
            is_tied=reads_tokens and draw.random() < 0.2,
            has_buffer=draw.random() < 0.3,
            has_unused=draw.random() < 0.15,
            frozen=draw.choice(("", "", "", "input", "first", "products")),
            checkpoints=draw.choice(("", "", "", "wrapper", "function", "reentrant", "every other")),
            repeats=draw.choice((1, 1, 1, 2)),
        )


def norm_of(shape: Shape) -> nn.Module:
    norm_class = {"rms": nn.RMSNorm, "layer": nn.LayerNorm, "none": nn.Identity}[shape.norm]
    return norm_class(shape.width)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.width, shape.hidden, bias=shape.has_bias)
        self.w2 = nn.Linear(shape.hidden, shape.width, bias=shape.has_bias)
        self.w3 = nn.Linear(shape.width, shape.hidden, bias=shape.has_bias) if shape.is_gated else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.w1(x))
        out: Tensor = self.w2(hidden if self.w3 is None else hidden * self.w3(x))
        return out


class Block(nn.Module):
    """A layer with attention, a feed-forward network, or both."""

    def __init__(self, shape: Shape, kind: str) -> None:
        super().__init__()
        self.attention_norm = norm_of(shape)
        self.attention = Attention(shape.width, shape.width // 4) if kind != "dense" else None
        self.ffn_norm = norm_of(shape)
        self.feed_forward = FeedForward(shape) if kind != "attention" else None
        self.dropout = nn.Dropout(shape.dropout)
        if shape.has_buffer:
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.register_buffer("running", torch.zeros(shape.width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.attention is not None:
            x = x + self.dropout(self.attention(self.attention_norm(x)))
        if self.feed_forward is not None:
            x = x + self.dropout(self.feed_forward(self.ffn_norm(x)))
        if hasattr(self, "running") and self.training:
            self.calls += 1
            self.running.lerp_(x.detach().float().mean((0, 1)), 0.1)
        return x


class Drawn(nn.Module):
    """A model: the layers of a :class:`Shape` between an embedding, or a linear layer, and a head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(512, shape.width) if shape.reads_tokens else nn.Linear(16, shape.width)
        self.layers = nn.ModuleList(Block(shape, kind) for kind in shape.kinds)
        self.norm = norm_of(shape)
        self.output = nn.Linear(shape.width, 512 if shape.is_tied else shape.classes, bias=shape.has_bias)
        if shape.is_tied:
            self.output.weight = self.embedding.weight
        if shape.has_unused:
            self.unused = nn.Linear(shape.width, 33)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not self._is_frozen(name))

    def _is_frozen(self, name: str) -> bool:
        return {
            "": False,
            "input": name.startswith("embedding") and not self.shape.is_tied,
            "first": name.startswith("layers.0."),
            "products": ".w" in name,
        }[self.shape.frozen]

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for _ in range(self.shape.repeats):
            for number, layer in enumerate(self.layers):
                x = self._called(number, layer, x)
        out: Tensor = self.output(self.norm(x))
        return out

    def _called(self, number: int, layer: nn.Module, x: Tensor) -> Any:
        is_in_part = self.shape.checkpoints == "every other" and number % 2 == 0
        if not torch.is_grad_enabled() or not (is_in_part or self.shape.checkpoints in ("function", "reentrant")):
            return layer(x)
        return checkpoint(layer, x, use_reentrant=self.shape.checkpoints == "reentrant")


class DrawnPart(nn.Module):
    """A pipeline stage: a layer of a :class:`Shape`, with the embedding or the head at the ends."""

    def __init__(self, shape: Shape, number: int, stages: int) -> None:
        super().__init__()
        whole = Drawn(replace(shape, kinds=(shape.kinds[number % len(shape.kinds)],), is_tied=False, repeats=1))
        self.layers = whole.layers
        self.before = whole.embedding if number == 0 else nn.Identity()
        self.after = nn.Sequential(whole.norm, whole.output) if number == stages - 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(self.layers[0](self.before(x)))
        return out


def inputs_of(shape: Shape, batch: int) -> tuple[Tensor, Tensor]:
    """Return a batch of inputs, and its targets."""
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 10, (batch, LENGTH), generator=draw)
    if shape.reads_tokens:
        return torch.randint(0, 512, (batch, LENGTH), generator=draw), targets
    return torch.rand(batch, LENGTH, 16, generator=draw), targets
