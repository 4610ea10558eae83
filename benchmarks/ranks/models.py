"""The models of :mod:`benchmarks.ranks.cases`: a tiny Llama, with a tied or untied head, and a tiny CNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, LENGTH, WIDTH, CLASSES, SIDE = 512, 64, 128, 10, 16


class Attention(nn.Module):
    """Causal attention with the heads that a rank has."""

    def __init__(self, width: int, head: int = 32) -> None:
        super().__init__()
        self.head = head
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, -1, self.head).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
        out: Tensor = self.wo(self.mixed(q, k, v).transpose(1, 2).reshape(batch, length, -1))
        return out

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.feed_forward = Attention(width), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class Llama(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(3))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.output(self.norm(x))
        return out


class Part(nn.Module):
    """A pipeline stage of a Llama: a layer, with the embedding or the head at the ends."""

    def __init__(self, number: int, stages: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if number == 0 else nn.Identity()
        self.layers = nn.ModuleList([Layer(WIDTH)])
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False) if number == stages - 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.layers[0](self.embedding(x)))
        return out


class Stage(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Stage(before, after) for before, after in ((3, 32), (32, 64), (64, 130)))
        self.head = nn.Linear(130, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Model(NamedTuple):
    """How a model is built, and the inputs and targets of a batch."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, Tensor]]


def _tokens(batch: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, VOCABULARY, (batch, LENGTH), generator=torch.Generator().manual_seed(0))
    return tokens, tokens.clone()


def _images(batch: int) -> tuple[Tensor, Tensor]:
    images = torch.rand(batch, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return images, torch.zeros(batch, dtype=torch.long)


MODELS = {"llama": Model(Llama, _tokens), "tied": Model(lambda: Llama(tied=True), _tokens), "cnn": Model(Cnn, _images)}
