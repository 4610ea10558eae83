"""CUDA: staging buffers of batch norm without cuDNN, in channels last, also with statistics from all ranks.

Source: aten/src/ATen/native/cuda/Normalization.cuh, ``flexible_launch_configs``,
``batch_norm_stats_channels_last_cuda_template`` and ``batch_norm_backward_reduce_cuda_channels_last_template``;
Normalization.cu, ``batch_norm_backward_cuda``. Where several rows of thread blocks share a channel they add up in a
buffer, with a semaphore for each column of blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....data.capability import Capability
from ....data.rounding import ceil_div, power_of_two_below
from ...backends import is_cudnns, is_native_backward, is_rows, stands_for_cudnns
from ..registry import Alloc, Course, Free, Result, scratch
from ..sizes import copied, itemsize, nbytes, suggested
from .allocations import Allocations, buffers, results
from .chips import chip_of
from .reductions import course, welford

SOURCE = "aten/src/ATen/native/cuda/Normalization.cuh"

SUM_BYTES = {torch.float64: 8}
"""Of a sum, by dtype, where it is not 4."""

THREADS, TILE, EACH, MOST_ROWS, FEWEST_ROWS = 512, 32, 16, 128, 8
"""Threads of a block, channels of a tile, elements of a thread, and how many rows of blocks share a channel."""


@scratch("cuda", "aten::batch_norm_stats", source=SOURCE, band=0.0)
def batch_norm_stats(out: Any, x: Tensor, eps: float) -> Course:
    """Four values for each channel and row of blocks."""
    return buffers(*_staging(x, 4 * itemsize(out[0])))


@scratch("cuda", "aten::native_batch_norm", source=SOURCE, band=0.0, by_capability=True)
def native_batch_norm(
    capability: Capability, out: Any, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> Course:
    """In training, what the statistics need; a scalar for each parameter that is missing."""
    if stands_for_cudnns(x, weight, bias, mean, var, training) or not x.numel():
        return ()
    return _forward(capability, x, weight, bias, training)


@scratch("cuda", "aten::native_batch_norm_backward", source=SOURCE, band=0.0)
def native_batch_norm_backward(
    out: Any, grad: Tensor, x: Tensor, weight: Any, mean: Any, var: Any, mu: Any, rstd: Any, training: bool, *_: Any
) -> Course:
    """For rows of channels two sums each, the weights' gradients and staging buffers, ahead of the input's gradient."""
    if not is_native_backward(x, weight, training):
        return _by_cudnn(out, grad, x)
    return _backward(out, grad, x, weight, mean, bool(rstd.numel()), training)


@scratch("cuda", "aten::_batch_norm_with_update", source=SOURCE, band=0.0, by_capability=True)
def with_update(capability: Capability, out: Any, x: Tensor, weight: Any, bias: Any, *_: Any) -> Course:
    """As :func:`native_batch_norm` in training, where cuDNN is not chosen."""
    return () if is_cudnns(x, weight) or not x.numel() else _forward(capability, x, weight, bias, True)


@scratch("cuda", "aten::batch_norm_backward", source=SOURCE, band=0.0)
def batch_norm_backward(
    out: Any, grad: Tensor, x: Tensor, weight: Any, mean: Any, var: Any, mu: Any, rstd: Any, update: bool, *_: Any
) -> Course:
    """As :func:`native_batch_norm_backward`; for cuDNN a gradient in the input's format."""
    if is_cudnns(x, weight):
        return _by_cudnn(out, grad, x)
    return _backward(out, grad, x, weight, mean, bool(rstd.numel()), update)


@scratch(
    "cuda", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats",
    source=SOURCE, band=0.0, by_capability=True,
)  # fmt: skip
def batch_norm_legit(capability: Capability, out: Any, x: Tensor, weight: Any, bias: Any, *others: Any) -> Course:
    """As :func:`native_batch_norm`, by torch's own kernel whatever the tensors; some have no running statistics."""
    training = next(value for value in others if isinstance(value, bool))
    return _forward(capability, x, weight, bias, training) if x.numel() else ()


@scratch("cuda", "aten::_native_batch_norm_legit_no_training", source=SOURCE, band=0.0, by_capability=True)
def batch_norm_by_statistics(capability: Capability, out: Any, x: Tensor, weight: Any, bias: Any, *_: Any) -> Course:
    """As :func:`batch_norm_legit`, in evaluation."""
    return _forward(capability, x, weight, bias, False) if x.numel() else ()


def _forward(capability: Capability, x: Tensor, weight: Any, bias: Any, training: bool) -> Course:
    """Return a course: staging for rows of channels; in other layouts the general reduction, and scalars.

    Source: Normalization.cu, ``batch_norm_choose_impl``, which counts volumes in channels last among the others.
    """
    is_image = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    results = tuple(Result(place) for place in range(3))
    if x.is_contiguous() or is_image:
        is_rows = x.stride(1) == 1 or not x.is_contiguous()
        sizes = _staging(x, 4 * SUM_BYTES.get(x.dtype, 4)) if training and is_rows else ()
        return *results, *map(Alloc, sizes)
    single = torch.float64 if x.dtype is torch.float64 else torch.float32
    steps = Allocations()
    steps.result(0, 1, 2)
    if training:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        kind = replace(welford(single), dtype=x.dtype if x.dtype is torch.float16 else single)
        reducing = course(chip_of(capability), x, axes, single, kind)
        freed = {step.buffer for step in reducing if isinstance(step, Free)}
        steps.free(*(buffer for buffer in steps.append(reducing) if buffer not in freed))
    for parameter in (weight, bias):
        if parameter is None:
            steps.buffer(SUM_BYTES.get(x.dtype, 4))
    return steps.course()


def _by_cudnn(out: Any, grad: Tensor, x: Tensor) -> Course:
    return *buffers(copied(grad, suggested(x))), *results(out)


def _backward(out: Any, grad: Tensor, x: Tensor, weight: Any, running: Any, is_saved: bool, training: bool) -> Course:
    """Return a course with sums for each channel; one kernel does without, for an input that is not rows of channels.

    Statistics that are not saved, as by cuDNN in evaluation, are computed from the ``running`` ones.
    """
    reduces = training or out[1] is not None or out[2] is not None
    if not x.numel() or (reduces and out[0] is not None and not is_rows(x)):
        return ()
    places = _results(out)
    size = SUM_BYTES.get(x.dtype, 4)
    per_channel, steps = Alloc(x.shape[1] * size), Allocations()
    if not is_saved and reduces and running.element_size() != size:
        steps.append((per_channel,))
    if not is_saved:
        steps.append((per_channel,))
    if reduces and is_rows(x) and is_rows(grad):
        steps.append((per_channel, per_channel))
        if weight is not None:
            steps.append(places.get(place, Alloc(nbytes(weight))) for place in (1, 2))
        steps.free(*steps.append(map(Alloc, _staging(x, 2 * size))))
    elif reduces:
        steps.append((per_channel, per_channel) if out[0] is not None else ())
        steps.append(places[place] for place in (1, 2) if place in places)
    steps.append(() if out[0] is None else (places[0],))
    return steps.course()


def _results(out: Any) -> dict[int, Result]:
    """Return the results that exist by their places; they are counted without those that are not wanted."""
    return {place: Result(index) for index, place in enumerate(p for p in range(3) if out[p] is not None)}


@scratch("cuda", "aten::batch_norm_backward_reduce", source=SOURCE, band=0.0)
def batch_norm_backward_reduce(out: Any, grad: Tensor, x: Tensor, mean: Tensor, *_: Any) -> Course:
    """Two values for each channel and row of blocks."""
    return buffers(*_staging(x, 2 * itemsize(mean)))


@scratch(
    "cuda", "aten::batch_norm_gather_stats_with_counts", "aten::batch_norm_elemt", "aten::batch_norm_backward_elemt",
    source=SOURCE, band=0.0,
)  # fmt: skip
def nothing(out: Any, *_: Any) -> Course:
    """One kernel each, without a buffer."""
    return ()


def _staging(x: Tensor, size: int) -> tuple[int, ...]:
    """Return the bytes of a staging buffer, with so many for each channel and row of blocks, and of its semaphores."""
    columns, rows = blocks(x.numel() // x.shape[1], x.shape[1]) if is_rows(x) and x.numel() else (1, 1)
    return () if rows == 1 else (size * x.shape[1] * rows, 4 * columns)


def blocks(reduced: int, channels: int) -> tuple[int, int]:
    """Return the columns and rows of thread blocks that reduce so many elements of each channel.

    >>> blocks(4096, 64)
    (2, 16)
    """
    wide = min(power_of_two_below(channels), TILE)
    high = min(power_of_two_below(ceil_div(reduced, EACH)), THREADS // wide)
    if wide * high != THREADS:
        wide = min(power_of_two_below(channels), THREADS // high)
    rows = min(ceil_div(reduced, high * EACH), MOST_ROWS)
    return ceil_div(channels, wide), rows if rows >= FEWEST_ROWS else 1
