"""Random small programs of factories, nested views and in-place writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROWS, WIDTH = 96, 64


FACTORIES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: torch.zeros(ROWS, WIDTH),
    lambda x: torch.empty(ROWS, WIDTH).fill_(0.25),
    lambda x: torch.full((ROWS, WIDTH), 0.5),
    lambda x: torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH).div_(ROWS * WIDTH),
    lambda x: torch.tensor([[0.5] * WIDTH] * ROWS),
    lambda x: torch.from_numpy(np.ones((ROWS, WIDTH), dtype=np.float32)),
    lambda x: torch.as_tensor(np.ones((ROWS, WIDTH), dtype=np.float32)).clone(),
    lambda x: torch.zeros_like(x),
    lambda x: x.new_ones(2, ROWS, WIDTH)[1],
    lambda x: torch.zeros(3 * ROWS, WIDTH)[ROWS : 2 * ROWS],
    lambda x: torch.zeros(WIDTH, ROWS).t(),
    lambda x: torch.linspace(0, 1, ROWS * WIDTH).reshape(ROWS, WIDTH),
    lambda x: torch.eye(ROWS, WIDTH),
)

VIEWS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda t: t[: max(1, t.shape[0] // 2)],
    lambda t: t[1:],
    lambda t: t.unsqueeze(0)[0],
    lambda t: t.view_as(t),
    lambda t: t.detach(),
    lambda t: t.t().t(),
    lambda t: t.transpose(0, 1)[:WIDTH].transpose(0, 1),
    lambda t: t.as_strided((1, WIDTH), t.stride(), t.storage_offset()),
    lambda t: t.narrow(0, 0, max(1, t.shape[0] - 1)),
    lambda t: t.flatten()[: t.shape[0] * WIDTH].view(-1, WIDTH),
)

NUMBERS: tuple[Callable[[Tensor], object], ...] = (
    lambda t: t.add_(1),
    lambda t: t.mul_(0.5),
    lambda t: t.sub_(0.1),
    lambda t: t.div_(2),
    lambda t: t.clamp_(-1, 1),
    lambda t: t[:1].fill_(0.5),
    lambda t: t[:, 0].mul_(2.0),
    lambda t: t[0].zero_(),
)

WRITES: tuple[Callable[[Tensor, Tensor], object], ...] = (
    lambda t, s: t.add_(s),
    lambda t, s: t.copy_(s),
    lambda t, s: t.sub_(s, alpha=0.1),
    lambda t, s: t.mul_(s),
    lambda t, s: t.lerp_(s, 0.1),
    lambda t, s: t.__setitem__(slice(0, 1), s[:1]),
    lambda t, s: t[:, ::2].copy_(s[:, ::2]),
    lambda t, s: t.index_add_(0, torch.arange(t.shape[0]), s),
    lambda t, s: t.index_copy_(0, torch.arange(t.shape[0]), s),
    lambda t, s: t.masked_fill_(s > 0, 0.5),
    lambda t, s: t.scatter_(1, torch.zeros(t.shape[0], WIDTH, dtype=torch.long), s),
    lambda t, s: t.index_put_((torch.arange(t.shape[0]),), s),
    lambda t, s: t.addcmul_(s, s, value=0.1),
)

RESULTS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda t, s: t * s,
    lambda t, s: t + s,
    lambda t, s: torch.cat([t, s])[: t.shape[0]],
    lambda t, s: torch.stack([t, s]).sum(0),
    lambda t, s: torch.where(t > 0, t, s),
    lambda t, s: t.tanh(),
    lambda t, s: t.clone(),
    lambda t, s: t * 2 + 1,
)


def _fitted(source: Tensor, target: Tensor) -> Tensor:
    """As many rows of a tensor as another has, in memory of their own."""
    rows = target.shape[0]
    return source[:rows].clone() if source.shape[0] >= rows else source[torch.arange(rows) % source.shape[0]]


class Program(nn.Module):
    """A layer, followed by random instructions on its output and on tensors created in the forward."""

    def __init__(self, seed: int, outside: tuple[Tensor, ...] = ()) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(WIDTH, WIDTH)
        dice = random.Random(seed)
        weights = (3, 3, 2, 5, 3, 2, 1, 1)
        kinds = ("make", "view", "number", "write", "result", "layer", "drop", "quiet")
        self.instructions = [
            (kind, dice.randrange(1000), dice.randrange(1000), dice.randrange(1000))
            for kind in ["make", "layer", *dice.choices(kinds, weights, k=dice.randrange(4, 12)), "write", "layer"]
        ]
        self.outside = outside

    def forward(self, x: Tensor) -> Tensor:
        tensors: list[Tensor] = [self.layer(x), *self.outside]
        for kind, which, first, second in self.instructions:
            self._do(kind, which, tensors, first % len(tensors), second % len(tensors), x)
        total = self.layer(x).pow(2).mean()
        for tensor in tensors:
            total = total + tensor.mean()
        return total

    def _do(self, kind: str, which: int, tensors: list[Tensor], first: int, second: int, x: Tensor) -> None:
        t, s = tensors[first], tensors[second]
        if kind == "make":
            tensors.append(FACTORIES[which % len(FACTORIES)](x))
        elif kind == "view":
            tensors.append(VIEWS[which % len(VIEWS)](t))
        elif kind == "number":
            _within(NUMBERS, which)(t)
        elif kind == "write":
            _within(WRITES, which)(t, _fitted(s, t))
        elif kind == "quiet":
            with torch.no_grad():
                _within(WRITES, which)(t, _fitted(s, t))
        elif kind == "result":
            tensors.append(_within(RESULTS, which)(t.clone() if which % 5 else t, _fitted(s, t)))
        elif kind == "layer":
            tensors.append(self.layer(t.clone() if which % 3 else t))
        elif len(tensors) > 2:
            del tensors[first]


def _within(table: tuple[Any, ...], which: int) -> Any:
    return table[which % len(table)]
