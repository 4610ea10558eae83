"""CUDA: scratch memory of normalisation and dropout, and the order in which their results are allocated."""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ....data.rounding import ceil_div
from ....live.versions import since
from ..registry import Alloc, Course, Result, scratch
from ..sizes import copied, itemsize, suggested
from .allocations import Allocations, buffers, copies, results
from .chips import chip_of
from .reductions import staged, summing
from .tensor_iterator import Reduction

DROPOUT = "aten/src/ATen/native/cuda/Dropout.cu, dropout_cuda: the mask comes first"
LAYER_NORM = "aten/src/ATen/native/cuda/layer_norm_kernel.cu, layer_norm_backward_cuda"


@scratch("cuda", "aten::native_dropout", source=DROPOUT, band=0.0)
def dropout(out: Any, *_: Any, **__: Any) -> Course:
    """The mask is allocated before the output."""
    return Result(1), Result(0)


@scratch("cuda", "aten::native_layer_norm", "aten::_fused_rms_norm", source=LAYER_NORM, band=0.0)
def layer_norm(out: Any, x: Any, *_: Any, **__: Any) -> Course:
    """A contiguous copy of the input; the output comes before the statistics."""
    return *copies(x), *results(out)


@scratch("cuda", "aten::native_layer_norm_backward", source=LAYER_NORM, band=0.0, by_capability=True)
def layer_norm_backward(
    capability: Capability, out: Any, grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, *_: Any
) -> Course:
    """As :func:`_backward`, with gradients of weight and bias."""
    return _backward(capability, out, grad, x, rstd, weight, 2)


@scratch("cuda", "aten::_fused_rms_norm_backward", source=LAYER_NORM, band=0.0, by_capability=True)
def rms_norm_backward(
    capability: Capability, out: Any, grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, *_: Any
) -> Course:
    """As :func:`_backward`, with the weight's gradient only."""
    return _backward(capability, out, grad, x, rstd, weight, 1)


MANY_ROWS = 64 << 10
"""Rows above which weights' gradients are computed in parts."""
TILE, MOST_BLOCKS = 32, 32 << 10
"""Rows and columns of a part, at least, and most parts."""


def _backward(capability: Capability, out: Any, grad: Any, x: Any, rstd: Any, weight: Any, gradients: int) -> Course:
    """Copies of non-contiguous tensors; for many rows, partial sums of each weight's gradient, reduced one by one."""
    steps = Allocations()
    steps.append((*copies(x), *results(out), *copies(grad)))
    rows, chip = rstd.numel(), chip_of(capability)
    width = x.numel() // max(1, rows)
    if weight is None or rows <= MANY_ROWS or width // TILE >= chip.multiprocessors // 2:
        return steps.course()
    parts = min(MOST_BLOCKS // ceil_div(width, TILE), ceil_div(rows, TILE))
    size = itemsize(weight)
    for _ in range(gradients):
        steps.buffer(parts * width * size)
    over_parts = Reduction((parts, width), (0, size), (width * size, size), 0)
    stages = staged(chip, over_parts, summing(weight.dtype)) or ()
    for _ in range(gradients):
        steps.free(*reversed([steps.buffer(nbytes) for nbytes in (width * size, *stages)]))
    return steps.course()


GROUP_NORM = "aten/src/ATen/native/cuda/group_norm_kernel.cu"


STATISTICS_TWICE_SINCE = "2.13"
"""Not yet in 2.11: in half precision, group norm reads its statistics in float32, besides those that it returns."""
WHOLE_OPERATOR_SINCE = "2.14"
"""The first release whose group norm copies its operands itself, and needs no sums with one place per channel."""
CHANNELS_LAST_SINCE = "2.15"
"""The first release whose group norm reads channels-last tensors as they lie; measured on 2.14 and 2.15."""


def _read_layout(x: Any) -> Any:
    """Return the memory format in which group norm reads its input and the output's gradient."""
    return suggested(x) if since(CHANNELS_LAST_SINCE) else torch.contiguous_format


def _is_read_by_channel(x: Any) -> bool:
    """Whether the channels-last kernels run, also for a row-major tensor with one place per channel, which is both."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if layout is None or not since(CHANNELS_LAST_SINCE):
        return False
    return suggested(x) is layout or x.is_contiguous(memory_format=layout)


@scratch("cuda", "aten::native_group_norm", source=GROUP_NORM, band=0.0)
def group_norm(out: Any, x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, groups: int, *_: Any) -> Course:
    """A factor and a summand for each channel of each sample; in rows, only with weights and several places.

    Operands in another layout are copied: after the results, but before them by torch's composite operator until 2.13.
    """
    read = *buffers(copied(x, _read_layout(x))), *copies(weight, bias)
    is_whole = since(WHOLE_OPERATOR_SINCE)
    if is_whole and not x.numel():
        return results(out)
    size = max(4, itemsize(x))
    is_half = itemsize(x) < size
    statistics = (Alloc(n * groups * size),) * 2 if is_half and since(STATISTICS_TWICE_SINCE) else ()
    is_plain = not _is_read_by_channel(x) and (hxw == 1 or (weight is None and bias is None))
    factors = () if is_plain else (Alloc(n * c * size),) * 2
    start = (*results(out), *read) if is_whole else (*read, *results(out))
    return *start, *statistics, *factors


@scratch("cuda", "aten::native_group_norm_backward", source=GROUP_NORM, band=0.0)
def group_norm_backward(
    out: Any, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, groups: int, *_: Any
) -> Course:
    """Copies, sums for each channel, and the input's factors: two of each group, and in rows one of each channel."""
    is_whole, is_last, layout = since(WHOLE_OPERATOR_SINCE), _is_read_by_channel(x), _read_layout(x)
    if is_whole and not x.numel():
        return results(out)
    size = max(4, itemsize(x))
    per_channel, per_group = Alloc(n * c * size), Alloc(n * groups * size)
    read = buffers(*(copied(tensor, layout) for tensor in (grad, x)))
    sums = () if is_whole and hxw == 1 and not is_last else (per_channel, per_channel)
    start: Course = (*read, *copies(mean, rstd, weight), *results(out), *sums)
    if out[0] is None:
        return start
    is_scaled = weight is not None and hxw > 1 and not is_last
    return *start, per_group, per_group, *((per_channel,) if is_scaled else ())
