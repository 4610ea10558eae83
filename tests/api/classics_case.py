"""A case of the classics: a model's builder and its input size without the batch axis."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Builder = Callable[[], nn.Module]
CLASSICS: dict[str, tuple[Builder, tuple[int, ...]]] = {}


def classic(*size: int) -> Callable[[Builder], Builder]:
    """Register a builder with the size of its input."""

    def add(builder: Builder) -> Builder:
        CLASSICS[builder.__name__] = (builder, size)
        return builder

    return add


def without_weights(builder: Builder) -> nn.Module:
    """The model with memory for its weights and nothing written there: no time goes into random numbers."""
    with torch.device("meta"):
        model = builder()
    return model.to_empty(device="cpu")
