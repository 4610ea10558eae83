"""Shared by tests of a step's memory: a small model, its input, its loss."""

import torch
from torch import Tensor, nn

WIDTH = 64


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def rows() -> Tensor:
    return torch.randn(32, WIDTH)


def squared(output: Tensor) -> Tensor:
    return output.pow(2).mean()
