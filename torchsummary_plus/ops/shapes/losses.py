"""Rules for losses and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..dtypes import HALVES
from .pointwise import broadcast
from .registry import FLOATS, INDICES, Out, Outs, floats_of, fresh, is_contiguous, numel, rule, sure

NONE = 0
"""A loss per element; other reductions give one number."""


def _classes(x: Tensor, target: Tensor, weight: Tensor | None) -> torch.dtype:
    """Return the dtype of scores of classes whose targets and weights fit."""
    sure(x.dim() in (1, 2) and target.dtype is torch.int64 and target.shape == x.shape[:-1] and numel(x.shape))
    sure(weight is None or weight.shape == x.shape[-1:])
    return floats_of(x, weight)


def _pixels(x: Tensor, target: Tensor, weight: Tensor | None) -> torch.dtype:
    """The same of scores for each pixel of images."""
    sure(x.dim() == 4 and target.dtype is torch.int64 and target.shape == (x.shape[0], *x.shape[2:]) and numel(x.shape))
    sure(weight is None or weight.shape == (x.shape[1],))
    return floats_of(x, weight)


def _nll_loss(name: str, dtype_of: Callable[[Tensor, Tensor, Tensor | None], torch.dtype]) -> None:
    """Register a loss of classes and its gradient; ``dtype_of`` declines arguments that do not fit."""

    def forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, _: int) -> Outs:
        dtype = dtype_of(x, target, weight)
        return [fresh(target.shape if reduction == NONE else (), dtype), fresh((), dtype)]

    def backward(
        grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, _: int, total: Tensor
    ) -> Out:
        dtype_of(x, target, weight)
        sure(grad.shape == (target.shape if reduction == NONE else ()) and not total.dim() and is_contiguous(x))
        return fresh(x.shape, floats_of(x, grad, total))

    rule(f"{name}_forward")(forward)
    rule(f"{name}_backward")(backward)


_nll_loss("nll_loss", _classes)
_nll_loss("nll_loss2d", _pixels)


@rule("mse_loss", "smooth_l1_loss", "huber_loss")
def loss_of_a_difference(x: Tensor, target: Tensor, reduction: int = 1, *_: Any, **__: Any) -> Out:
    """The mean or sum of what two tensors of one dtype differ by."""
    sure(reduction != NONE)
    broadcast([x.shape, target.shape])
    return fresh((), floats_of(x, target))


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def loss_backward(grad: Tensor, x: Tensor, target: Tensor, *_: Any) -> Out:
    """The gradient, written into row-major zeros of the input's shape (``Loss.cpp``)."""
    sure(broadcast([x.shape, target.shape, grad.shape]) == x.shape)
    return fresh(x.shape, floats_of(x, target, grad))


@rule("binary_cross_entropy", "binary_cross_entropy_with_logits")
def binary_cross_entropy(x: Tensor, target: Tensor, *settings: Any) -> Out:
    """The mean or sum of the losses of probabilities or logits, with weights that broadcast."""
    weights = [value for value in settings if isinstance(value, Tensor)]
    sure(x.shape == target.shape and not any(value == NONE for value in settings if isinstance(value, int)))
    sure(all(broadcast([x.shape, weight.shape]) == x.shape for weight in weights))
    return fresh((), floats_of(x, target, *weights))


@rule("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Out:
    """The gradient of the probabilities, all row-major."""
    sure(grad.shape == (x.shape if reduction == NONE else ()) and x.shape == target.shape and numel(x.shape))
    sure(weight is None or (weight.shape == x.shape and is_contiguous(weight)))
    sure(all(map(is_contiguous, (grad, x, target))))
    return fresh(x.shape, floats_of(x, target, grad, weight))


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_backward(grad: Tensor, x: Tensor, *_: Any) -> Out:
    """The gradient of the scores, row-major; torch has no meta kernels, and none in half precision on the CPU."""
    sure(x.dim() in (1, 2) and numel(x.shape) and grad.shape in ((), x.shape[:-1]))
    sure(x.device.type == "cuda" or x.dtype not in HALVES)
    return fresh(x.shape, floats_of(x, grad))


@rule("_log_softmax_backward_data", "_softmax_backward_data")
def softmax_backward(grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Out:
    """The gradient of the scores, row-major."""
    sure(grad.shape == out.shape and floats_of(grad, out) is dtype and -out.dim() <= dim < out.dim())
    return fresh(grad.shape, dtype)


@rule("embedding_dense_backward")
def embedding_backward(grad: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool) -> Out:
    """The gradient of a table of vectors."""
    sure(indices.dtype in INDICES and grad.dtype in FLOATS and grad.dim() and grad.shape[:-1] == indices.shape)
    return fresh((rows, grad.shape[-1]), grad.dtype)
