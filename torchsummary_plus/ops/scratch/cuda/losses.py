"""CUDA: scratch memory of losses, most of which torch computes element by element and then averages or adds up.

Source: aten/src/ATen/native/Loss.cpp, aten/src/ATen/native/cuda/Loss.cu, and the files named beside each rule.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ...dtypes import result_type
from ..registry import Alloc, Course, Result, reserve, scratch
from ..sizes import INT64, itemsize, nbytes
from .allocations import Allocations, copies, joined
from .chips import Chip
from .reductions import sum_course

MEAN = 1
"""``Reduction::Mean``; 0 is none, 2 sum."""


def pairs(x: Any, other: Any) -> int:
    """Return the number of pairs of elements, one tensor broadcast to the other."""
    return int(prod(torch.broadcast_shapes(x.shape, other.shape)))


SOURCE = "aten/src/ATen/native/Loss.cpp and cuda/Loss.cu"


def _reduced(chip: Chip, out: Any, count: int) -> Course:
    """Return the staging buffers of a mean or sum of ``count`` losses."""
    losses = torch.empty(count, dtype=out.dtype, device="meta")
    return sum_course(chip, losses, [0])


@reserve("cuda", "aten::mse_loss", "aten::smooth_l1_loss", source=SOURCE)
def squared_loss_storage(out: Any, x: Any, target: Any, *_: Any) -> tuple[int, ...]:
    """The result has room for all losses before it is resized to one element; its storage stays large."""
    return (pairs(x, target) * itemsize(out),)


@scratch("cuda", "aten::mse_loss", "aten::smooth_l1_loss", source=SOURCE)
def squared_loss(chip: Chip, out: Any, x: Any, target: Any, reduction: int = MEAN, *_: Any) -> Course:
    """A loss per element besides the result's storage, then the mean's buffers."""
    if not reduction:
        return ()
    count = pairs(x, target)
    return joined((Alloc(count * itemsize(out)),), _reduced(chip, out, count))


@scratch("cuda", "aten::huber_loss", source=SOURCE)
def huber_loss(chip: Chip, out: Any, x: Any, target: Any, reduction: int = MEAN, *_: Any) -> Course:
    """A loss per element, ahead of the result."""
    if not reduction:
        return ()
    return joined((Alloc(nbytes(x)), Result(0)), _reduced(chip, out, x.numel()))


@reserve("cuda", "aten::binary_cross_entropy", "aten::soft_margin_loss", source=SOURCE)
def cross_entropy_storage(out: Any, x: Any, *_: Any) -> tuple[int, ...]:
    """As :func:`squared_loss_storage`."""
    return (nbytes(x),)


@scratch("cuda", "aten::binary_cross_entropy", source=SOURCE)
def cross_entropy(chip: Chip, out: Any, x: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> Course:
    """The losses are in the result's storage; the mean is copied there."""
    return joined((Alloc(itemsize(out)),), _reduced(chip, out, x.numel())) if reduction else ()


@scratch("cuda", "aten::binary_cross_entropy_with_logits", source=SOURCE)
def cross_entropy_with_logits(
    chip: Chip, out: Any, x: Any, target: Any, weight: Any = None, pos_weight: Any = None,
    reduction: int = MEAN,
) -> Course:  # fmt: skip
    """``log_sigmoid``, which ``pos_weight`` multiplies by a weight per element; then ``1 - target``, the later loss."""
    steps = Allocations()
    steps.buffer(nbytes(x))
    if pos_weight is not None:
        less_one = steps.buffer(nbytes(pos_weight))
        log_weight = steps.buffer(pairs(pos_weight, target) * result_type(pos_weight, target).itemsize)
        steps.free(log_weight, less_one)
    if reduction:
        steps.buffer(nbytes(target))
    steps.result(0)
    if reduction:
        steps.append(_reduced(chip, out, x.numel()))
    return steps.course()


LIKELIHOOD_2D = "aten/src/ATen/native/cuda/NLLLoss2d.cu"


@scratch("cuda", "aten::nll_loss2d_forward", source=LIKELIHOOD_2D)
def pixel_likelihood(out: Any, x: Any, target: Any, weight: Any, reduction: int, *_: Any) -> Course:
    """A contiguous copy of the weights, and of input and target for a mean or sum."""
    return Result(0), Result(1), *copies(*((x, weight, target) if reduction else (weight,)))


@scratch("cuda", "aten::nll_loss2d_backward", source=LIKELIHOOD_2D)
def pixel_likelihood_backward(out: Any, grad: Any, x: Any, target: Any, weight: Any, reduction: int, *_: Any) -> Course:
    """A contiguous copy of the weights, and of the target for a mean or sum."""
    return Result(0), *copies(*((target, weight) if reduction else (weight,)))


@reserve("cuda", "aten::log_sigmoid_forward", source="aten/src/ATen/native/cuda/Activation.cpp")
def log_sigmoid_buffer(out: Any, *_: Any) -> tuple[int | None, ...]:
    """The buffer, which only the CPU's backward reads, is empty."""
    return None, 0


@scratch(
    *("cuda", "aten::_ctc_loss", "aten::_ctc_loss.Tensor"),
    source="aten/src/ATen/native/cuda/LossCTC.cu, ctc_loss_gpu_template",
)
def ctc(out: Any, scores: Any, *_: Any, **__: Any) -> Course:
    """The lengths of inputs and targets, and the targets' offsets."""
    each = Alloc(scores.shape[1] * INT64)
    return each, each, each, Result(1), Result(0)


@scratch(
    *("cuda", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor"),
    source="aten/src/ATen/native/cuda/LossCTC.cu, ctc_loss_backward_gpu_template",
    band=0.01,
)
def ctc_backward(
    out: Any, grad: Any, scores: Any, targets: Any, inputs: Any, lengths: Any, loss: Any, table: Any, blank: int,
    zero_infinity: bool = False,
) -> Course:  # fmt: skip
    """The forward's table again, lengths and offsets; for large problems also the sums over every other column."""
    steps, batch, labels = scores.shape
    lengths_bytes, table_bytes = batch * INT64, nbytes(table)
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 <= 450:
        each = Alloc(lengths_bytes)
        return each, each, each, Alloc(table_bytes)
    blanks = batch * steps * (table.shape[2] // 2 + 1) * itemsize(scores)
    maxima = batch * steps * itemsize(scores)
    infinite = nbytes(scores) if zero_infinity else 0
    return (Alloc(int(3 * lengths_bytes + table_bytes + max(2 * blanks + 2 * maxima, infinite))),)
