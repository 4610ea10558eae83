"""Scratch memory of losses on the CPU: a loss per element, its mean, and operands of another dtype."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ...dtypes import result_type
from ..losses import MEAN, pairs
from ..registry import ALL_RESULTS, Phase, reserve, scratch
from ..sizes import NATIVE, elements, itemsize, nbytes, scalar
from .in_place import written
from .pointwise import cast_bytes
from .reductions import mean_bytes
from .transposing import copied_in_turn

LOSS = f"{NATIVE}Loss.cpp"


@scratch("cpu", "aten::mse_loss", "aten::smooth_l1_loss", source=LOSS, band=0.0)
def _squared_loss(out: Any, x: Any, target: Any, reduction: int = MEAN, *_: Any) -> int:
    """The loss per element, twice, once in the result's storage; before each, operands of another dtype are cast."""
    cast = _cast_to(out.dtype, x, target)
    if not reduction:
        return cast
    return 2 * cast + _paired(out, x, target) + _mean_of(out, reduction, pairs(x, target))


def _cast_to(common: torch.dtype, *operands: Any) -> int:
    """Return the bytes of the operands that are cast to a dtype."""
    return sum(cast_bytes(operand, common) for operand in operands)


def _written_to(target: torch.dtype, *operands: Any) -> int:
    """Return the scratch of operands computed in their common dtype and written to a tensor of another one."""
    common = result_type(*operands)
    count = int(prod(torch.broadcast_shapes(*(operand.shape for operand in operands))))
    return _cast_to(common, *operands) + (0 if common is target else count * int(common.itemsize))


def _paired(out: Any, x: Any, target: Any) -> int:
    """Return the bytes of one loss per pair of elements."""
    return pairs(x, target) * itemsize(out)


def _mean_of(out: Any, reduction: int, losses: int) -> int:
    """Return the scratch of the mean of some losses."""
    if reduction != MEAN:
        return 0
    return mean_bytes(out, torch.empty(losses, dtype=out.dtype, device="meta"))


@reserve("cpu", "aten::mse_loss", "aten::smooth_l1_loss", source=LOSS, band=0.0)
def _squared_loss_storage(out: Any, x: Any, target: Any, *_: Any) -> tuple[int, ...]:
    """The result is resized to one element; its storage stays large."""
    return (_paired(out, x, target),)


@scratch("cpu", "aten::huber_loss", source=LOSS, band=0.0)
def _huber_loss(out: Any, x: Any, target: Any, reduction: int = MEAN, *_: Any) -> tuple[Phase, ...]:
    """A loss per pair of elements, in the input's dtype, which is enlarged to all pairs; casts last until the end."""
    first = nbytes(x) if elements(x) < pairs(x, target) else 0
    written = first + _written_to(x.dtype, x, target)
    if not reduction:
        return (Phase(ALL_RESULTS, written),)
    losses = pairs(x, target) * itemsize(x)
    averaged = _cast_to(result_type(x, target), x, target) + _mean_of(out, reduction, pairs(x, target))
    return Phase(0, losses + written), Phase(ALL_RESULTS, losses + averaged)


@scratch("cpu", "aten::binary_cross_entropy", source=LOSS, band=0.0)
def _cross_entropy(out: Any, x: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> int:
    reduced = itemsize(out) + _mean_of(out, reduction, pairs(x, target)) if reduction else 0
    return max(_cast_to(x.dtype, target, weight), reduced)


@scratch("cpu", "aten::binary_cross_entropy_backward", source=LOSS, band=0.0)
def _cross_entropy_backward(out: Any, grad: Any, x: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> int:
    """The weights in the input's dtype, then the number that a mean divides by."""
    return max(_cast_to(x.dtype, grad, target, weight), scalar(x) if reduction == MEAN else 0)


@scratch("cpu", "aten::log_sigmoid_forward", source=f"{NATIVE}Activation.cpp, log_sigmoid_forward_cpu", band=0.0)
def _log_sigmoid(out: Any, x: Any) -> int:
    return copied_in_turn(x)[1]


@scratch("cpu", "aten::soft_margin_loss", source=LOSS, band=0.0)
def _soft_margin(out: Any, x: Any, target: Any, reduction: int = MEAN) -> int:
    """``-x`` times the target in place, then the losses' sum or mean."""
    reduced = itemsize(out) + _mean_of(out, reduction, elements(x)) if reduction else 0
    return max(_cast_to(x.dtype, target) if x.dtype is result_type(x, target) else written(x, target), reduced)


@scratch("cpu", "aten::soft_margin_loss_backward", source=LOSS, band=0.0)
def _soft_margin_backward(out: Any, grad: Any, x: Any, target: Any, *_: Any) -> tuple[Phase, ...]:
    """``-target * x`` step by step, its exponential, and the terms that follow."""
    common = result_type(target, x)
    power = pairs(x, target) * int(common.itemsize)
    first = nbytes(target) + power + max(power, _cast_to(common, target, x))
    apart = 0 if common is x.dtype else power
    return Phase(0, first), Phase(ALL_RESULTS, power + max(scalar(x), apart + _cast_to(common, target)))


@scratch("cpu", "aten::dist", source=f"{NATIVE}LinearAlgebra.cpp", band=0.0)
def _distance(out: Any, x: Any, other: Any, *_: Any) -> tuple[Phase, ...]:
    """The difference, for which operands of another dtype are cast."""
    common = result_type(x, other)
    difference = pairs(x, other) * int(common.itemsize)
    return Phase(0, difference + _cast_to(common, x, other)), Phase(ALL_RESULTS, difference)


@reserve("cpu", "aten::binary_cross_entropy", "aten::soft_margin_loss", source=LOSS, band=0.0)
def _cross_entropy_storage(out: Any, x: Any, *_: Any) -> tuple[int, ...]:
    """The same as :func:`_squared_loss_storage`."""
    return (nbytes(x),)


@scratch("cpu", "aten::binary_cross_entropy_with_logits", source=LOSS, band=0.0)
def _cross_entropy_with_logits(
    out: Any, x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> int:
    """``log_sigmoid`` with its buffer and, of a strided input, a copy; then the rest."""
    first = 2 * nbytes(x) + copied_in_turn(x)[1] - nbytes(out)
    return max(first, _after_log_sigmoid(out, x, target, pos_weight, reduction))


def _after_log_sigmoid(out: Any, x: Any, target: Any, pos_weight: Any, reduction: int) -> int:
    """``1 - target`` beside its result; in between ``pos_weight - 1`` and a weight per element.

    A target of another dtype sets the loss's.
    """
    if x.dtype is not target.dtype:
        written = nbytes(x) + _written_to(target.dtype, x, target)
        if not reduction:
            return written
        averaged = nbytes(x) + _mean_of(out, reduction, elements(x))
        return nbytes(target) + max(written - nbytes(out), averaged)
    loss = 2 * nbytes(x) + (_mean_of(out, reduction, elements(x)) if reduction else -nbytes(out))
    if pos_weight is None:
        return loss
    return max(loss, 2 * nbytes(x) + nbytes(pos_weight) + scalar(x) - nbytes(out))


@scratch("cpu", *(f"aten::{name}_backward" for name in ("mse_loss", "smooth_l1_loss", "huber_loss")), source=LOSS,
         band=0.0)  # fmt: skip
def _squared_loss_backward(out: Any, grad: Any, x: Any, target: Any, *_: Any) -> int:
    """Operands in their common dtype; a result of another one is copied from there.

    The result is allocated in the input's shape first, and again if the target's is larger.
    """
    first = elements(x) * itemsize(out) if elements(x) < elements(out) else 0
    return first + _written_to(out.dtype, x, target, grad)


@scratch("cpu", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor", source=f"{NATIVE}LossCTC.cpp", band=0.0)
def _ctc_backward(
    out: Any, grad: Any, scores: Any, targets: Any, inputs: Any, lengths: Any, loss: Any, table: Any, *_: Any
) -> int:
    """The forward's table again, filled from the end."""
    return nbytes(table)
