"""The description of a step: what to run, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .losses import Loss


@dataclass(frozen=True)
class Step:
    """The step to record.

    ``mode`` "train" or "eval"; ``optimizer`` None, a name, a class or a callable from parameters; ``loss`` None for the
    output's own, else its sum; ``autocast`` a dtype; ``train_step`` the user's own ``(model, *inputs)``;
    ``keep_output`` for a loop that keeps the output until the next one; ``steps`` the number of repetitions, each of
    ``micro_batches`` forwards and backwards whose gradients add up.
    """

    mode: str = "train"
    optimizer: Any = None
    loss: Loss | None = None
    autocast: torch.dtype | None = None
    train_step: Callable[..., Any] | None = None
    keep_output: bool = False
    steps: int = 2
    micro_batches: int = 1
