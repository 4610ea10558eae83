"""CUDA: scratch memory of normalisation, softmax and dropout, and the order in which their results are allocated."""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ....live.versions import since
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, scratch
from .chips import chip_of
from .iterator import Reduction
from .reductions import Kind, course, staged

DROPOUT = "aten/src/ATen/native/cuda/Dropout.cu, dropout_cuda: the mask comes first"
LAYER_NORM = "aten/src/ATen/native/cuda/layer_norm_kernel.cu, layer_norm_backward_cuda"


@scratch("cuda", "aten::native_dropout", source=DROPOUT, band=0.0)
def dropout(out: Any, *_: Any, **__: Any) -> Course:
    """The mask is allocated before the output."""
    return Result(1), Result(0)


@scratch("cuda", "aten::native_layer_norm", "aten::_fused_rms_norm", source=LAYER_NORM, band=0.0)
def layer_norm(out: Any, x: Any, *_: Any, **__: Any) -> Course:
    """A contiguous copy of the input; the output comes before the statistics."""
    return *_copy(x), *(Result(place) for place in range(len(out)))


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


MANY_ROWS, BLOCKS = 64 << 10, 32 << 10


def _backward(capability: Capability, out: Any, grad: Any, x: Any, rstd: Any, weight: Any, count: int) -> Course:
    """Copies of non-contiguous tensors; for many rows, partial sums of each weight's gradient, reduced one by one."""
    steps = [*_copy(x), *(Result(place) for place in range(sum(t is not None for t in out))), *_copy(grad)]
    rows = rstd.numel()
    width = x.numel() // max(1, rows)
    chip = chip_of(capability)
    if weight is None or rows <= MANY_ROWS or width // 32 >= chip.multiprocessors // 2:
        return tuple(steps)
    blocks = min(BLOCKS // -(-width // 32), -(-rows // 32))
    steps += [Alloc(blocks * width * weight.element_size())] * count
    size = weight.element_size()
    summed = Reduction((blocks, width), (0, size), (width * size, size), 0)
    sizes = staged(chip, summed, Kind(max(4, size), 8 if size == 2 else 4, weight.dtype)) or ()
    for _ in range(count):
        first = sum(isinstance(step, Alloc) for step in steps)
        steps += [Alloc(width * size), *map(Alloc, sizes)]
        steps += [Free(first + place) for place in reversed(range(1 + len(sizes)))]
    return tuple(steps)


GROUP_NORM = "aten/src/ATen/native/cuda/group_norm_kernel.cu"


STATISTICS_TWICE_SINCE = "2.13"
"""Not yet in 2.11: in half precision, group norm reads its statistics in float32, besides those that it returns."""


@scratch("cuda", "aten::native_group_norm", source=GROUP_NORM, band=0.0)
def group_norm(out: Any, x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, groups: int, *_: Any) -> Course:
    """A factor and a summand for each channel of each sample, unless there are no weights or one place per channel."""
    plain = hxw == 1 or (weight is None and bias is None)
    size = max(4, x.element_size())
    is_twice = x.element_size() < size and since(STATISTICS_TWICE_SINCE)
    statistics = (Alloc(n * groups * size),) * 2 if is_twice else ()
    return (*(Result(place) for place in range(len(out))), *statistics, *(() if plain else (Alloc(n * c * size),) * 2))


@scratch("cuda", "aten::native_group_norm_backward", source=GROUP_NORM, band=0.0)
def group_norm_backward(
    out: Any, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, groups: int, *_: Any
) -> Course:
    """Sums for each channel, then factors for the input's gradient: two of each group, and one of each channel."""
    size = max(4, x.element_size())
    each, of_group = Alloc(n * c * size), Alloc(n * groups * size)
    results = tuple(Result(place) for place in range(sum(one is not None for one in out)))
    if out[0] is None:
        return *results, each, each
    return (*results, each, each, of_group, of_group, *(() if weight is None or hxw == 1 else (each,)))


def _copy(tensor: Any) -> Course:
    return () if tensor.is_contiguous() else (Alloc(tensor.numel() * tensor.element_size()),)


SAFE_SOFTMAX = "aten/src/ATen/native/transformers/attention.cpp, _safe_softmax"


@scratch("cuda", "aten::_safe_softmax", source=SAFE_SOFTMAX, band=0.0, by_capability=True)
def safe_softmax(capability: Capability, out: Any, x: Any, dim: int, dtype: Any = None) -> Course:
    """Masks of -inf elements and of rows that hold nothing else, and the value that replaces those."""
    if not x.numel():
        return ()
    infinite, *stages = course(chip_of(capability), out, [dim], torch.bool, Kind(1, 4, torch.bool), first=1)
    return infinite, Alloc(x.numel() // x.shape[dim]), *stages, Alloc(out.element_size())


@scratch("cuda", "aten::_softmax_backward_data", source="aten/src/ATen/native/cuda/SoftMax.cu", band=0.0)
def softmax_backward(out: Any, grad: Any, *_: Any) -> Course:
    """The product of gradient and output, in the gradient's layout, and a contiguous copy of it."""
    product = Alloc(grad.numel() * grad.element_size())
    return (product, product) if is_dense(grad) and not grad.is_contiguous() else (product,)


LOGSUMEXP = "aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl"


def logsumexp(capability: Capability, out: Any, x: Any, dims: Any, *_: Any, **__: Any) -> Course:
    """The maxima with a mask of infinite ones, then the exponentials of what is left, and their sum."""
    if not x.numel():
        return ()
    chip, dtype, size = chip_of(capability), x.dtype, x.element_size()
    greatest, each = Alloc(out.numel() * size), Alloc(x.numel() * size)
    stages = course(chip, x, dims, dtype, Kind(size, 4, dtype), first=1)
    count = 1 + sum(isinstance(step, Alloc) for step in stages)
    masked = (Alloc(out.numel()), Free(count), Free(0))
    summed = course(chip, x, dims, dtype, Kind(max(4, size), 8 if size == 2 else 4, dtype), first=count + 3)
    return greatest, *stages, *masked, each, greatest, *summed


@scratch("cuda", "aten::renorm", source="aten/src/ATen/native/ReduceOps.cpp, renorm_out", band=0.0, by_capability=True)
def renorm(capability: Capability, out: Any, x: Any, p: Any, dim: int, *_: Any) -> Course:
    """Norms along an axis in float32 at least, with their staging, and in half precision a factor for each."""
    count, size = x.shape[dim], x.element_size()
    norms = torch.float32 if size < 4 else x.dtype
    others = [axis for axis in range(x.dim()) if axis != dim % x.dim()]
    staging = course(chip_of(capability), x, others, norms, Kind(max(4, size), 8 if size == 2 else 4, x.dtype), first=1)
    factors = (Alloc(count * size),) if size < 4 else ()
    return Alloc(count * max(4, size)), *staging, *factors


ROLL = "aten/src/ATen/native/TensorTransformations.h, roll_common; cuda/TensorTransformations.cu, roll_cuda"


@scratch("cuda", "aten::roll", source=ROLL, band=0.0)
def roll(out: Any, x: Any, shifts: Any, dims: Any = (), *_: Any) -> Course:
    """A contiguous copy of the input, and one rolled tensor for each axis but the last."""
    copies = _copy(x)
    steps: list[Any] = list(copies)
    for buffer in range(len(copies), len(copies) + len(dims) - 1):
        steps.append(Alloc(x.numel() * x.element_size()))
        steps += [Free(buffer - 1)] if buffer else []
    return *steps, Result(0)
