"""CUDA: scratch memory of normalisation, softmax and dropout, and the order in which their results are allocated."""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ..registry import Alloc, Course, Result, scratch
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
    """A contiguous copy of the input."""
    return _copy(x)


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
    """Copies of non-contiguous tensors; for many rows, partial sums of the weights' gradients, reduced at the end."""
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
    sizes = staged(chip, summed, Kind(max(4, size), 8 if size == 2 else 4, weight.dtype))
    return (*steps, Alloc(width * size), *(Alloc(nbytes) for nbytes in sizes or ()))


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
def softmax_backward(out: Any, grad: Any, *_: Any) -> int:
    """The product of gradient and output."""
    return int(grad.numel() * grad.element_size())
