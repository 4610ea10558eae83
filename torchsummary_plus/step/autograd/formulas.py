"""Functions whose gradient torch computes by other formulas under a mode, run as it computes them without one.

Products of elements: the formulas that check for zeros keep several times as much memory without the check, which a
mode leaves out. A step is assumed to have no zeros; its range covers the formulas for some too, and the one for several
zeros in a product of all elements. The maximum, minimum or median of all elements: its gradient is shared among equal
elements, by a formula that on the CPU checks the result for NaN. Casts of autocast: made here for functions that are
replaced before the dispatch at which autocast would cast.

Source: torch/csrc/autograd/FunctionsManual.cpp, ``prod_backward``, ``cumprod_backward`` and
``evenly_distribute_backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...live import compat
from ...live.versions import since
from ...ops.dtypes import HALVES
from ...ops.scratch.masks import note_true
from ...trace.questions import Zeros

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


_EXTREMES = {getattr(place, name) for place in (torch, Tensor) for name in ("max", "min", "median", "nanmedian")}


def extreme_function(func: Any) -> Callable[..., Any] | None:
    """Return the maximum, minimum or median of all elements as it runs without a mode; None for other functions."""
    if func not in _EXTREMES:
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


def cast_on_cpu(operator: str, tensor: Any) -> Any:
    """Return a tensor as autocast casts it for an operator that it runs in float32 on the CPU.

    Source: aten/src/ATen/autocast_mode.cpp, ``KERNEL_CPU(..., fp32)``: the cast precedes autograd, which keeps it.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype not in HALVES or tensor.device.type != "cpu":
        return tensor
    is_cast = torch.is_autocast_enabled("cpu") and compat.has_kernel(operator, "AutocastCPU")
    return tensor.float() if is_cast else tensor


class CastGrid(torch.autograd.Function):
    """``torch.affine_grid_generator`` operator by operator: its product, and so its result, is in autocast's dtype.

    Source: aten/src/ATen/native/AffineGridGenerator.cpp; the operator itself has no kernel of autocast's.
    """

    @staticmethod
    def forward(ctx: Any, theta: Tensor, size: list[int], align_corners: bool) -> Tensor:
        """Multiply the grid in homogeneous coordinates by the matrices."""
        ctx.size, ctx.align_corners = size, align_corners
        count, _, *sides = size
        points = theta.new_empty((count, *sides, len(sides) + 1))
        for axis, length in enumerate(reversed(sides)):
            points[..., axis].copy_(_steps(theta, length, align_corners).view(-1, *[1] * axis))
        points[..., -1].fill_(1)
        points = points.view(count, -1, len(sides) + 1)
        return torch.bmm(points, theta.transpose(1, 2)).view(count, *sides, len(sides))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient of the matrices."""
        return torch.ops.aten.affine_grid_generator_backward.default(grad, ctx.size, ctx.align_corners), None, None


def _steps(theta: Tensor, length: int, align_corners: bool) -> Tensor:
    """Return the coordinates along one axis, from -1 to 1."""
    ends = (-1, 1) if length > 1 else (0, 0)
    steps = torch.linspace(*ends, length, dtype=theta.dtype, device=theta.device)
    return steps if align_corners else steps * (length - 1) / length


def cast_grid(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """Run ``torch.affine_grid_generator`` under autocast."""
    grid: Tensor = CastGrid.apply(theta, list(size), align_corners)  # type: ignore[no-untyped-call]
    return grid
