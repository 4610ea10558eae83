"""Models whose graphs are not chains, each with its input."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18, resnet50


class UNet(nn.Module):
    def __init__(self, width: int = 4, levels: int = 3) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(levels + 1)]
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.merge = nn.ModuleList(nn.Conv2d(2 * a, a, 3, padding=1) for a in sizes[:-1])

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.stem(x)]
        for down in self.down:
            outputs.append(F.relu(down(F.max_pool2d(outputs[-1], 2))))
        x = outputs.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            x = merge(torch.cat([outputs.pop(), up(x)], 1))
        return x


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(3, 4, 1))
        self.head = nn.Linear(12, 5)
        self.side = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.one(x), self.three(x), self.pool(x)], 1).mean((2, 3))
        return self.head(x), self.side(x)


class Mixture(nn.Module):
    """Tokens go to their two best experts, which is known from values alone: it runs for real."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(8, experts)
        self.experts = nn.ModuleList(_expert() for _ in range(experts))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, expert(flat[token]) * weights[token, place, None])
        return x + out.view_as(x)


def _expert() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.twin = self.branch
        self.head = nn.Bilinear(4, 4, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(self.branch(left), self.twin(right))


def _vectors(*sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, *size) for size in sizes)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "resnet18": (resnet18, lambda: _vectors((3, 32, 32))),
    "resnet50": (resnet50, lambda: _vectors((3, 32, 32))),
    "unet": (UNet, lambda: _vectors((3, 16, 16))),
    "inception": (Inception, lambda: _vectors((3, 8, 8))),
    "gpt2": (lambda: GPT2(Config(32, 3, 4, 50, 16)), lambda: (torch.randint(50, (2, 12)),)),
    "mixture": (Mixture, lambda: _vectors((5, 8))),
    "siamese": (Siamese, lambda: _vectors((4,), (4,))),
    "transformer": (lambda: nn.Transformer(8, 2, 2, 2, 16, 0.0, batch_first=True), lambda: _vectors((5, 8), (3, 8))),
}
