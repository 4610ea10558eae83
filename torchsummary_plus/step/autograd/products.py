"""Gradients of products of elements, whose formulas check for zeros.

Under a mode torch uses the formulas without the check, which hold several times as much. A step is assumed to have no
zeros.

Source: torch/csrc/autograd/FunctionsManual.cpp, ``prod_backward`` and ``cumprod_backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NO_ZERO = "assumed to contain no zeros"

_FUNCTIONS = {torch.prod: "prod", torch.Tensor.prod: "prod", torch.cumprod: "cumprod", torch.Tensor.cumprod: "cumprod"}


def product_function(func: Any, note: Callable[[str, str], None]) -> Callable[..., Any] | None:
    """Return how a product of elements runs without a mode, None for other functions; ``note`` records assumptions."""
    name = _FUNCTIONS.get(func)
    if name is None:
        return None

    def run(*given: Any, input: Any = None, **kwargs: Any) -> Any:
        tensor, *args = given or (input,)
        if not isinstance(tensor, Tensor):
            return func(*given, **kwargs)
        asks = torch.is_grad_enabled() and tensor.requires_grad and tensor.dim() > 0 and tensor.is_floating_point()
        axes = _axes(*args, **kwargs)
        if not asks or axes is None or (name == "cumprod" and (tensor.numel() <= 1 or tensor.shape[axes[0]] == 1)):
            return func(tensor, *args, **kwargs)
        note(name, NO_ZERO)
        apply: Any = (Cumulated if name == "cumprod" else OfAll if not axes else Along).apply
        return apply(tensor, *axes)

    return run


def _axes(dim: Any = None, keepdim: bool = False, **others: Any) -> tuple[Any, ...] | None:
    """Return a product's axis and whether it is kept; () for all axes, None if a dtype is given too."""
    if others or not isinstance(dim, (int, type(None))):
        return None
    return () if dim is None else (dim, keepdim)


class OfAll(torch.autograd.Function):
    """The product of all elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the product."""
        out = x.prod()
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient, with torch's mask of zeros."""
        x, out = ctx.saved_tensors
        zeros = x == 0
        del zeros
        return grad * (out / x)


class Along(torch.autograd.Function):
    """Products along an axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        """Return the products."""
        out = x.prod(dim, keepdim)
        ctx.save_for_backward(x, out)
        ctx.dim, ctx.keepdim = dim, keepdim
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient, with torch's mask and count of zeros."""
        x, out = ctx.saved_tensors
        if not ctx.keepdim:
            grad, out = grad.unsqueeze(ctx.dim), out.unsqueeze(ctx.dim)
        zeros = x == 0
        counts = zeros.sum(ctx.dim, True)
        total = counts.sum()
        del total
        result = grad * (out / x)
        del zeros, counts
        return result, None, None


class Cumulated(torch.autograd.Function):
    """Cumulative products along an axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        """Return the cumulative products."""
        out = x.cumprod(dim)
        ctx.save_for_backward(x, out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient by a reversed cumulative sum, with torch's mask of zeros."""
        x, out = ctx.saved_tensors
        weighted = out * grad
        zeros = x == 0
        any_zero = zeros.any()
        del any_zero
        turned = weighted.flip(ctx.dim)
        sums = turned.cumsum(ctx.dim)
        back = sums.flip(ctx.dim)
        del turned, sums
        result = back.div(x)
        del zeros, back, weighted
        return result, None, None
