"""Random arguments for losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .draws import FLOATS, Draw, a_part_of, a_shape, calls, laid, meta, near

REDUCTIONS = (0, 1, 2)
LONG = torch.int64


def _some_weight(d: Draw, classes: int, dtype: torch.dtype) -> Tensor | None:
    return laid(d, near(d, classes), dtype) if d.random() < 0.4 else None


def _scores(d: Draw) -> tuple[Tensor, Tensor, Tensor | None, torch.dtype]:
    dtype, classes, batch = d.choice(FLOATS), d.randint(1, 4), [] if d.random() < 0.2 else [d.randint(1, 5)]
    return laid(d, (*batch, classes), dtype), meta(near(d, *batch), LONG), _some_weight(d, classes, dtype), dtype


def _images(d: Draw) -> tuple[Tensor, Tensor, Tensor | None, torch.dtype]:
    dtype, (n, c, h, w) = d.choice(FLOATS), (d.randint(1, 4) for _ in range(4))
    return laid(d, (n, c, h, w), dtype), meta(near(d, n, h, w), LONG), _some_weight(d, c, dtype), dtype


@calls("nll_loss_forward")
def _(d: Draw) -> Sequence[Any]:
    x, target, weight, _ = _scores(d)
    return x, target, weight, d.choice(REDUCTIONS), -100


@calls("nll_loss2d_forward")
def _(d: Draw) -> Sequence[Any]:
    x, target, weight, _ = _images(d)
    return x, target, weight, d.choice(REDUCTIONS), -100


calls("nll_loss_backward")(lambda d: _backward(d, *_scores(d)))
calls("nll_loss2d_backward")(lambda d: _backward(d, *_images(d)))


def _backward(d: Draw, x: Tensor, target: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Sequence[Any]:
    reduction = d.choice(REDUCTIONS)
    return meta(() if reduction else target.shape, dtype), x, target, weight, reduction, -100, meta((), dtype)


def _pair(d: Draw, alike: bool) -> tuple[Tensor, Tensor, torch.dtype]:
    shape, dtype = a_shape(d), d.choice(FLOATS)
    return laid(d, shape, dtype), laid(d, shape if alike else a_part_of(d, shape), dtype), dtype


calls("mse_loss", "smooth_l1_loss", "huber_loss")(lambda d: (*_pair(d, False)[:2], d.choice(REDUCTIONS)))


@calls("binary_cross_entropy")
def _(d: Draw) -> Sequence[Any]:
    x, target, dtype = _pair(d, True)
    return x, target, laid(d, a_part_of(d, x.shape), dtype) if d.random() < 0.3 else None, d.choice(REDUCTIONS)


@calls("binary_cross_entropy_backward")
def _(d: Draw) -> Sequence[Any]:
    (x, target, dtype), reduction = _pair(d, True), d.choice(REDUCTIONS)
    weight = laid(d, x.shape, dtype) if d.random() < 0.3 else None
    return meta(() if reduction else x.shape, dtype), x, target, weight, reduction


@calls("binary_cross_entropy_with_logits")
def _(d: Draw) -> Sequence[Any]:
    x, target, dtype = _pair(d, True)
    weights = [laid(d, a_part_of(d, x.shape), dtype) if d.random() < 0.3 else None for _ in range(2)]
    return x, target, *weights, d.choice(REDUCTIONS)


@calls("_softmax_backward_data", "_log_softmax_backward_data")
def _(d: Draw) -> Sequence[Any]:
    grad, out, dtype = _pair(d, True)
    return grad, out, d.randint(-out.dim(), max(out.dim() - 1, 0)), dtype


@calls("embedding_dense_backward")
def _(d: Draw) -> Sequence[Any]:
    shape = a_shape(d, most=3)
    return laid(d, (*near(d, *shape), 4), d.choice(FLOATS)), laid(d, shape, LONG), 7, -1, False
