"""The CPU gradient of the maximum, minimum or median of all elements, shared among equal elements.

On a GPU, and under a mode, torch uses the formula that does not check the result for NaN.

Source: torch/csrc/autograd/FunctionsManual.cpp, ``evenly_distribute_backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_FUNCTIONS = {getattr(place, name) for place in (torch, Tensor) for name in ("max", "min", "median", "nanmedian")}


def extreme_function(func: Any) -> Callable[..., Any] | None:
    """Return the maximum, minimum or median of all elements as it runs without a mode; None for other functions."""
    if func not in _FUNCTIONS:
        return None

    def run(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        asks = not (args or kwargs) and torch.is_grad_enabled() and input.requires_grad and input.dim()
        return ExtremeOfAll.apply(input, func) if asks else func(input, *args, **kwargs)  # type: ignore[no-untyped-call]

    return run


class ExtremeOfAll(torch.autograd.Function):
    """An extreme of all elements, whose gradient is shared among the elements equal to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, func: Callable[[Tensor], Tensor]) -> Tensor:
        """Run ``func`` on the input."""
        out = func(x)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Split the gradient among the elements equal to the result."""
        x, out = ctx.saved_tensors
        is_no_number = out.isnan()
        mask = x == out
        del is_no_number
        return grad.new_zeros(x.shape).masked_fill_(mask, grad / mask.sum()), None
