"""Gradients of products of elements, whose formulas check for zeros.

Under a mode torch uses the formulas without the check, which keep several times as much memory. A step is assumed to
have no zeros; its range covers those formulas too, and the one for several zeros in a product of all elements.

Source: torch/csrc/autograd/FunctionsManual.cpp, ``prod_backward`` and ``cumprod_backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...live.masks import note_true
from ...live.versions import since
from ...trace.questions import Zeros
from .casting import cast_on_cpu

NO_ZERO = "assumed to contain no zeros"
WITH_ZEROS = "products of elements are assumed to contain zeros"
ZEROS_BAND = 0.05 if since("2.13") else 1.5
"""Relative error of the storages with torch's formulas for zeros, which differ under a mode, before 2.13 more.

Measured on eight gradients of products, and of their gradients: up to 2.3 % of the peak; on torch 2.6 and 2.11 up to
141 % of the storages.
"""

_FUNCTIONS = {
    torch.prod: "prod",
    torch.Tensor.prod: "prod",
    torch.cumprod: "cumprod",
    torch.Tensor.cumprod: "cumprod",
    torch.Tensor.cumprod_: "cumprod",
    torch.linalg.vander: "linalg.vander",
}


def product_function(func: Any, note: Callable[[str, str], None], zeros: Zeros) -> Callable[..., Any] | None:
    """Return how a product of elements runs without a mode, None for other functions; ``note`` records assumptions."""
    if zeros == "some":
        return None
    of_all = ProductWithZeros if zeros == "several" else ProductOfAll
    name = _FUNCTIONS.get(func)
    if name is None:
        return None

    def run(*operands: Any, input: Any = None, **kwargs: Any) -> Any:
        tensor, *args = operands or (input,)
        if not isinstance(tensor, Tensor):
            return func(*operands, **kwargs)
        if func is torch.linalg.vander:
            return powers(tensor, *args, **kwargs)
        in_place = func is torch.Tensor.cumprod_
        tensor = tensor if in_place else cast_on_cpu(f"aten::{name}", tensor)
        asks = torch.is_grad_enabled() and tensor.requires_grad and tensor.dim() > 0 and tensor.is_floating_point()
        axes, dtype = _axes(*args, **kwargs)
        if not asks or axes is None or (name == "cumprod" and (tensor.numel() <= 1 or tensor.shape[axes[0]] == 1)):
            return func(tensor, *args, **kwargs)
        note(name, NO_ZERO)
        cumulated = CumulatedInPlace if in_place else Cumulated
        apply: Any = (cumulated if name == "cumprod" else of_all if not axes else ProductsAlong).apply
        return apply(tensor, dtype, *axes)

    def powers(x: Tensor, N: int | None = None) -> Tensor:
        """Return a Vandermonde matrix, whose powers are a product (BatchLinearAlgebra.cpp, ``linalg_vander``)."""
        count = (x.shape[-1] if N is None else N) - 1 if x.dim() else 0
        if count < 2 or not (torch.is_grad_enabled() and x.requires_grad and x.is_floating_point()):
            return func(x, N=N)  # type: ignore[no-any-return]
        note(name, NO_ZERO)
        apply: Any = Cumulated.apply
        result = apply(x.unsqueeze(-1).expand(*x.shape, count), None, -1, False)
        return torch.cat([result.new_ones(*x.shape, 1), result], -1)

    return run


def _axes(
    dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, **others: Any
) -> tuple[tuple[Any, ...] | None, torch.dtype | None]:
    """Return a product's axis and whether it is kept, () for all axes, None for other arguments; and its dtype."""
    if others or not isinstance(dim, (int, type(None))):
        return None, dtype
    return (() if dim is None else (dim, keepdim)), dtype


class ProductOfAll(torch.autograd.Function):
    """The product of all elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Return the product."""
        out = x.prod(dtype=dtype)
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient, with torch's mask of zeros."""
        x, out = ctx.saved_tensors
        x = x.to(grad.dtype)
        find_zeros(x, 0)
        return grad * (out / x), None


class ProductWithZeros(ProductOfAll):
    """The product of all elements, several of which are zero, so that the gradient is zero."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient."""
        x, _ = ctx.saved_tensors
        x = x.to(grad.dtype)
        find_zeros(x, 2)
        return torch.zeros_like(x), None


def find_zeros(x: Tensor, count: int) -> None:
    """Look for the places of zeros, of which there are ``count``."""
    zeros = x == 0
    note_true(zeros, count)
    zeros.nonzero()


class ProductsAlong(torch.autograd.Function):
    """Products along an axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype | None, dim: int, keepdim: bool) -> Tensor:
        """Return the products."""
        out = x.prod(dim, keepdim, dtype=dtype)
        ctx.save_for_backward(x, out)
        ctx.dim, ctx.keepdim = dim, keepdim
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient, with torch's mask and count of zeros."""
        x, out = ctx.saved_tensors
        x = x.to(grad.dtype)
        if not ctx.keepdim:
            grad, out = grad.unsqueeze(ctx.dim), out.unsqueeze(ctx.dim)
        zeros = x == 0
        counts = zeros.sum(ctx.dim, True)
        total = counts.sum()
        del total
        result = grad * (out / x)
        del zeros, counts
        return result, None, None, None


class Cumulated(torch.autograd.Function):
    """Cumulative products along an axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype | None, dim: int, keepdim: bool) -> Tensor:
        """Return the cumulative products."""
        out = x.cumprod(dim, dtype=dtype)
        ctx.save_for_backward(x, out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient by a reversed cumulative sum, with torch's mask of zeros."""
        x, out = ctx.saved_tensors
        grad = grad.to(x.dtype)
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
        return result, None, None, None


class CumulatedInPlace(Cumulated):
    """Cumulative products in place: the node saves a copy of the tensor's previous contents."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype | None, dim: int, keepdim: bool) -> Tensor:
        """Write the cumulative products to ``x``, and return it."""
        original = x.clone()
        x.cumprod_(dim, dtype=dtype)
        ctx.mark_dirty(x)
        ctx.save_for_backward(original, x)
        ctx.dim = dim
        return x
