"""Gradients of products of Householder reflectors, whose columns are written into one tensor.

Under a mode torch keeps the columns in a list and concatenates them. The names below live as long as the variables and
temporaries of the C++ formula, which an expression in Python would free earlier.

Source: torch/csrc/autograd/FunctionsManual.cpp, ``householder_product_backward`` and ``ormqr_backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .casting import cast_on_cpu

aten = torch.ops.aten

_PRODUCTS = {torch.linalg.householder_product, torch.orgqr, Tensor.orgqr}
_APPLIED = {torch.ormqr, Tensor.ormqr}
_PLACES = {"input": 0, "A": 0, "tau": 1, "input2": 1, "other": 2, "input3": 2, "left": 3, "transpose": 4}


def reflection_function(func: Any) -> Callable[..., Any] | None:
    """Return a product of reflectors as it runs without a mode; None for other functions."""
    if func not in _PRODUCTS and func not in _APPLIED:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        by_place = dict(enumerate(args)) | {_PLACES.get(name, -1): value for name, value in kwargs.items()}
        tensors = [value for _, value in sorted(by_place.items()) if isinstance(value, Tensor)]
        if -1 in by_place or not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            return func(*args, **kwargs)
        operator = "aten::linalg_householder_product" if func in _PRODUCTS else "aten::ormqr"
        tensors = [cast_on_cpu(operator, tensor) for tensor in tensors]
        if func in _PRODUCTS:
            return Product.apply(*tensors)  # type: ignore[no-untyped-call]
        return Applied.apply(*tensors, by_place.get(3, True), by_place.get(4, False))  # type: ignore[no-untyped-call]

    return run


class Product(torch.autograd.Function):
    """The first columns of a product of reflectors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tau: Tensor) -> Tensor:
        """Return the columns."""
        out: Tensor = torch.linalg.householder_product(x, tau)
        ctx.save_for_backward(x, tau, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradients of the reflectors and of their factors."""
        x, tau, out = ctx.saved_tensors
        return _gradients(grad, out, x, tau, is_turned=False)


class Applied(torch.autograd.Function):
    """A matrix multiplied by a product of reflectors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tau: Tensor, other: Tensor, left: bool, transpose: bool) -> Tensor:
        """Return the product."""
        out = torch.ormqr(x, tau, other, left, transpose)
        ctx.save_for_backward(x, tau, out)
        ctx.sides = left, transpose
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradients of the reflectors, of their factors and of the matrix."""
        x, tau, out = ctx.saved_tensors
        left, transpose = ctx.sides
        of_other = torch.ormqr(x, tau, grad, left, not transpose) if ctx.needs_input_grad[2] else None
        of_x, of_tau = None, None
        if any(ctx.needs_input_grad[:2]):
            first, second = (grad, out) if left != transpose else (out, grad)
            turns = transpose == (left != transpose)
            if turns:
                first, second = first.mH, second.mH
            of_x, of_tau = _gradients(first, second, x, tau, is_turned=left == transpose)
        return of_x, of_tau, of_other, None, None


def _gradients(grad: Tensor, out: Tensor, x_: Tensor, tau: Tensor, is_turned: bool) -> tuple[Any, Any]:
    """Return the gradients of the reflectors and of their factors, one reflector after the other."""
    count = tau.shape[-1]
    if not x_.numel() or not tau.numel():
        return None, None
    x = x_.tril(-1)
    x.diagonal(0, -2, -1).fill_(1.0)
    sigma, _norms = _inverse_factors(x.narrow(-1, 0, count), tau)
    outer = out.matmul(grad.mH)
    order = range(count - 1, -1, -1) if is_turned else range(count)

    def column(i: int, factors: Tensor) -> tuple[int, Tensor, Tensor]:
        return i, x.narrow(-1, i, 1), factors.narrow(-1, i, 1)

    outer = _reflected(*column(order[0], sigma), outer, left=not is_turned)
    x_grad, tau_grad = torch.zeros_like(x_), torch.zeros_like(tau)
    for i, following in zip(order, (*order[1:], None)):
        of_column, of_factor = _column_gradients(*column(i, tau), outer)
        x_grad.select(-1, i).copy_(of_column.squeeze(-1))
        tau_grad.select(-1, i).copy_(of_factor.squeeze(-1))
        if following is not None:
            outer = _reflected(*column(following, sigma), outer, left=not is_turned)
            outer = _reflected(*column(i, tau), outer, left=is_turned)
        del of_column, of_factor
    return x_grad.tril_(-1), tau_grad


def _inverse_factors(x: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of the inverse reflectors, and the squared norms."""
    norms = (x * x.conj()).sum(-2)
    scaled = tau * norms
    less = aten.sub.Scalar(scaled, 1.0)
    return tau / less, norms


def _column_gradients(i: int, column: Tensor, factor: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of one reflector and of its factor."""
    rest = column.shape[-2] - i
    v, t = column.narrow(-2, i, rest), factor.unsqueeze(-1)
    across = v.mH.matmul(outer.narrow(-2, i, rest))
    down = outer.narrow(-1, i, rest).matmul(v)
    negated, scaled = -t, t * down
    product = negated * across
    of_column = product.conj().squeeze(-2) - scaled.squeeze(-1)
    del negated, scaled, product
    trace = across.narrow(-1, i, rest).matmul(v)
    return of_column.unsqueeze(-1), (-trace).conj().squeeze(-1)


def _reflected(i: int, column: Tensor, factor: Tensor, outer: Tensor, left: bool) -> Tensor:
    """Multiply by a reflector; in place unless this gradient is differentiated in turn."""
    t = factor.unsqueeze(-1)
    if torch.is_grad_enabled():
        scaled = t * column
        if left:
            along = column.mH.matmul(outer)
            return outer - scaled * along
        along = outer.matmul(scaled)
        return outer - along * column.mH
    rest = column.shape[-2] - i
    v = column.narrow(-2, i, rest)
    if left:
        part = outer.narrow(-2, i, rest)
        along = v.mH.matmul(part)
        scaled = t * v
        part.sub_(scaled * along)
        return outer
    part = outer.narrow(-1, i, rest)
    along = part.matmul(t * v)
    part.sub_(along * v.mH)
    return outer
