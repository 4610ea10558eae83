"""Autocast's casts inside functions that a step replaces before the dispatch at which autocast would cast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...live import compat
from ...ops.dtypes import HALVES


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
