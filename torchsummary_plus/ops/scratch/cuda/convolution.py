"""CUDA: scratch memory of convolutions, in the order of ATen's allocations.

torch runs cuDNN's kernels, its own depthwise ones, or im2col and products: ``_select_conv_backend``,
``ConvParams::use_cudnn`` and ``use_cudnn_depthwise`` in aten/src/ATen/native/Convolution.cpp, of builds with cuDNN 9.3
or later. First come copies of tensors that are not in the kernels' memory format, then each kernel's own workspace;
cuDNN's is from :mod:`.cudnn`. Convolution.cpp (``_convolution``, ``convolution_backward``) and ATen/native/cudnn/
ConvShared.cpp; ATen/native/cuda/DepthwiseConv2d.cu and DepthwiseConv3d.cu for depthwise convolutions; for those that
cuDNN does not run, ConvolutionMM2d.cu, NaiveDilatedConvolution.cu (also every 3-d convolution), and
NaiveConvolutionTranspose2d.cu. Groups run one after another and are then concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ....data.capability import Capability, Chip
from ...backends import FORMATS, allows_tf32, takes_cudnn
from ...shapes.registry import is_channels_last
from ..allocations import Allocations, buffers, copied, copies, suggested
from ..registry import Alloc, AtMost, Result, Timeline, scratch
from .blas import cublas
from .cudnn.backend import Kind, Question
from .cudnn.queries import Cudnn, requested
from .cudnn.table import guess, trials_bytes
from .reductions import sum_course

ROWS = torch.contiguous_format
MANY = 2**31
"""Elements from which 32-bit indices overflow."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution's arguments other than its tensors; a single spatial axis has become two."""

    dtype: torch.dtype
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @property
    def is_dilated(self) -> bool:
        """Whether any dilation is not 1."""
        return any(step != 1 for step in self.dilation)


def route(conv: Convolution, x: Tensor, weight: Tensor, capability: Capability) -> str:
    """Return the implementation for an input and weights: "cudnn", "depthwise" or "columns"."""
    cudnn = takes_cudnn(conv.dtype, conv.stride, conv.output_padding, capability)
    channels = x.shape[1]
    is_depthwise = not conv.transposed and channels == conv.groups > 1 and weight.shape[0] % channels == 0
    if not is_depthwise:
        return "cudnn" if cudnn else "columns"
    if cudnn and (cudnn_format(x, weight) is not ROWS or _cudnn_is_faster(conv, x, weight, capability)):
        return "cudnn"
    return "cudnn" if max(x.numel(), weight.numel()) >= MANY else "depthwise"


def cudnn_format(first: Tensor, second: Tensor) -> torch.memory_format:
    """Return the memory format of cuDNN's tensors, by two that it reads (``cudnn_conv_suggest_memory_format``)."""
    is_last = first.dtype is not torch.float64 and (is_channels_last(first) or is_channels_last(second))
    return FORMATS[first.dim()] if is_last else ROWS


def _cudnn_is_faster(conv: Convolution, x: Tensor, weight: Tensor, capability: Capability) -> bool:
    """``check_cudnn_depthwise_workload_with_filter``, for half-precision images."""
    if conv.dtype is not torch.float16 or x.dim() != 4 or conv.is_dilated or capability < (7, 0):
        return False
    batch, channels, height, width = x.shape
    step = conv.stride[1]
    if channels < 32 or (conv.stride[0] != step and height != 1):
        return False
    if height == 1 and step == 1:
        return True
    size = weight.shape[3]
    if weight.shape[2] != size or size not in (1, 3, 5) or width < 7 or step not in (1, 2):
        return False
    if step == 1:
        return True
    if size == 1:
        return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)


def as_image(tensor: Any) -> Tensor:
    """Return a meta tensor of the same strides; before a single spatial axis comes one of length 1 (``view4d``)."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if len(shape) == 3:
        shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")


def operands(x: Any, weight: Any) -> tuple[tuple[Alloc, ...], Tensor, Tensor]:
    """Return input and weight as images, after the copy of a single spatial axis that is not contiguous."""
    image = as_image(x)
    line, read = (buffers(copied(image)), image.contiguous()) if x.dim() == 3 else ((), image)
    return line, read, as_image(weight)


@scratch("cuda", "aten::convolution", "aten::_convolution")
def convolution(
    chip: Chip, cudnn: Cudnn, out: Any, x: Any, weight: Any, bias: Any, *settings: Any
) -> Timeline | AtMost:
    """Return the timeline of the forward; an empty batch is multiplied by the weight, flat."""
    if not x.numel():
        flat = as_image(weight)
        return *buffers(min(copied(flat), copied(flat, FORMATS[flat.dim()]))), Result(0)
    conv, (line, image, kernel) = described(x, *settings), operands(x, weight)
    path, y = route(conv, image, kernel, chip), as_image(out).shape
    if path == "columns":
        return forward_columns(conv, chip, line, image, kernel, y, bias is not None)
    layout = cudnn_format(image, kernel) if path == "cudnn" else ROWS
    steps = Allocations()
    steps.append((*line, *buffers(copied(image, layout)), Result(0), *buffers(copied(kernel, layout))))
    if path == "cudnn":
        steps.temporary(*workspaces(conv, cudnn, chip, Kind.FORWARD, layout, image.shape, kernel, y))
    return steps.timeline()


@scratch("cuda", "aten::convolution_backward")
def convolution_backward(
    chip: Chip, cudnn: Cudnn, out: Any, grad: Any, x: Any, weight: Any, biases: Any, *settings: Any
) -> Timeline | AtMost:
    """Return the timeline of gradients of input and weights, then of the bias, a sum over all axes but the channels'.

    Source of the sum: ``grad_output.sum`` in ``convolution_backward``.
    """
    if not x.numel():
        return ()
    conv, (line, image, kernel) = described(x, *settings), operands(x, weight)
    slope, wanted = as_image(grad), settings[6]
    path = route(conv, image, kernel, chip)
    if path == "columns":
        return backward_columns(conv, chip, line, image, kernel, slope, wanted)
    steps = Allocations()
    steps.append(line)
    if path == "cudnn":
        backward_by_cudnn(steps, conv, cudnn, chip, image, kernel, slope, wanted)
    else:
        backward_of_channels(steps, image, kernel, slope, wanted)
    if wanted[2]:
        steps.result(sum(wanted) - 1)
        steps.append(sum_course(chip, grad, (0, *range(2, grad.dim()))))
    return steps.timeline()


def backward_by_cudnn(
    steps: Allocations, conv: Convolution, cudnn: Cudnn, chip: Chip, x: Tensor, weight: Tensor,
    grad: Tensor, wanted: Sequence[bool],
) -> None:  # fmt: skip
    """Allocate as ``cudnn_convolution_backward`` or ``..._transpose_backward``, which exchanges input and gradient."""
    layout = cudnn_format(x, weight)
    steps.append(buffers(copied(x, layout) if wanted[1] else 0))
    read = x.contiguous(memory_format=layout) if wanted[1] else x
    # A transposed one's gradient must be contiguous; others are only brought to the input's format, by ``to()``.
    if not (
        grad.is_contiguous(memory_format=suggested(read)) if conv.transposed else suggested(grad) is suggested(read)
    ):
        steps.append(buffers(grad.nbytes))
        grad = torch.empty_like(grad, memory_format=suggested(read))
    if wanted[0]:
        layout = cudnn_format(grad, weight)
        steps.result(0)
        copies = steps.append(buffers(copied(weight, layout), copied(grad, layout)))
        steps.temporary(*workspaces(conv, cudnn, chip, Kind.BACKWARD_DATA, layout, x.shape, weight, grad.shape))
        steps.free(*copies)
    if wanted[1]:
        layout = cudnn_format(read, grad)
        first, second = (read, grad) if conv.transposed else (grad, read)
        copies = steps.append(buffers(copied(first, layout), copied(second, layout)))
        steps.result(int(wanted[0]))
        steps.temporary(*workspaces(conv, cudnn, chip, Kind.BACKWARD_FILTER, layout, read.shape, weight, grad.shape))
        steps.free(*copies)


def backward_of_channels(steps: Allocations, x: Tensor, weight: Tensor, grad: Tensor, wanted: Sequence[bool]) -> None:
    """Allocate as torch's own depthwise kernels, which need contiguous tensors.

    Weights come first; the kernels of volumes allocate both results before the copies, which they hold to the end.
    """
    if x.dim() == 5:
        steps.result(*range(wanted[0] + wanted[1]))
        steps.append(copies(grad, x, weight))
        return
    held = [*steps.append(copies(grad))]
    if wanted[1]:
        image = steps.append(copies(x))
        steps.result(int(wanted[0]))
        steps.free(*image)
    if wanted[0]:
        steps.result(0)
        held += steps.append(copies(weight))
    steps.free(*held)


def workspaces(
    conv: Convolution, cudnn: Cudnn, chip: Chip, kind: Kind, layout: torch.memory_format, x: tuple[int, ...],
    weight: Tensor, y: tuple[int, ...],
) -> tuple[Alloc, ...]:  # fmt: skip
    """Return the workspaces of one cuDNN kernel, one after the other; a transposed convolution runs the other's kernel.

    With ``cudnn.benchmark`` torch first tries all plans, in one workspace, and then empties the allocator's cache
    (``_cudnn_get_conv_benchmark_empty_cache``); which plan is fastest is unknown, and without cuDNN, so is the largest.
    """
    if conv.transposed:
        x, y, kind = y, x, {Kind.FORWARD: Kind.BACKWARD_DATA, Kind.BACKWARD_DATA: Kind.FORWARD}.get(kind, kind)
    dtype, shapes = str(conv.dtype).removeprefix("torch."), (tuple(x), tuple(weight.shape), tuple(y))
    question = Question(kind, dtype, layout is not ROWS, *shapes, conv.padding, conv.stride, conv.dilation)
    plans = cudnn.plans(question)
    if plans is None:
        size, low, high = guess(question, chip, conv.dtype is not torch.float32 or allows_tf32())
        tried: tuple[int, ...] = (size, 0)
        low, high = cudnn.split(low, high)
        largest, most = high, cudnn.within_memory(max(high, trials_bytes(question)))
    else:
        tried, largest, most = requested(plans), max(plans), max(plans)
        low, high = cudnn.split(tried[0], tried[0])
    trials: tuple[Alloc, ...] = ()
    if torch.backends.cudnn.benchmark:
        low, high = 0, most
        if cudnn.is_new(question):
            band = 0.0 if plans else max(1.0, (most - largest) / max(1, largest))
            trials = (Alloc(largest, band, (largest // 2, 0), empties=True),)
    band = max(tried[0] - low, high - tried[0]) / max(1, tried[0])
    return *trials, Alloc(tried[0], band, tried[1:])


def described(
    x: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int, *_: Any
) -> Convolution:
    """Return the convolution's settings; a single axis becomes two (``view1d_as_2d``)."""

    def axes(sizes: Sequence[int], missing: int) -> tuple[int, ...]:
        """Return one value per axis, with ``missing`` in front for a single axis."""
        every = tuple(sizes) * (x.dim() - 2) if len(sizes) == 1 else tuple(sizes)
        return (missing, *every) if len(every) == 1 else every

    sizes = axes(padding, 0), axes(stride, 1), axes(dilation, 1)
    return Convolution(x.dtype, *sizes, transposed, axes(output_padding, 0), groups)


# Convolutions that cuDNN does not run, which unfold image by image into the columns of a matrix product.

Take = Callable[[int], object]


def _columns(conv: Convolution, x: Tensor, weight: Tensor, y: Sequence[int]) -> int:
    """Return the bytes of one image's columns: a transposed convolution unfolds its output, others their input."""
    places = x.shape[2:] if conv.transposed else y[2:]
    return weight.shape[1] * prod(weight.shape[2:]) * prod(places) * x.itemsize


def _bound(conv: Convolution, chip: Chip, x: Tensor, weight: Tensor, y: Sequence[int]) -> AtMost:
    """Return the bound of a rare one: columns, and each tensor copied, in parts and as parts."""
    tensors = x.nbytes + weight.nbytes + prod(y) * x.itemsize
    return AtMost(3 * tensors + _columns(conv, x, weight, y), cublas(chip))


def forward_columns(
    conv: Convolution, chip: Chip, line: Timeline, x: Tensor, weight: Tensor, y: Sequence[int], biased: bool
) -> Timeline | AtMost:
    """Return the allocations of the forward, whose output has the shape ``y``, after those of ``line``."""
    if len(y) == 5:
        return _bound(conv, chip, x, weight, y)
    steps, groups = Allocations(), conv.groups
    steps.append((*line, *copies(x, weight)))
    part = x.contiguous().narrow(1, 0, x.shape[1] // groups)
    is_moved = conv.is_dilated or any(step != 1 for step in conv.stride) or any(conv.padding)
    is_image = not conv.transposed and not is_moved and prod(weight.shape[2:]) == 1  # Multiplied as it is.
    for _ in range(groups):
        read = steps.buffer(copied(part))
        if groups == 1:
            steps.result(0)
        else:
            steps.buffer(prod(y) // groups * x.itemsize)
        unfolded = steps.buffer(0 if is_image else _columns(conv, x, weight, y))
        ones = steps.buffer(prod(y[2:]) * x.itemsize if biased and conv.transposed else 0)
        steps.temporary(*cublas(chip))
        steps.free(ones, unfolded, read)
    if groups > 1:
        steps.result(0)
    return steps.timeline()


def backward_columns(
    conv: Convolution, chip: Chip, line: Timeline, x: Tensor, weight: Tensor, grad: Tensor, wanted: Sequence[bool]
) -> Timeline | AtMost:
    """Return the allocations of the gradients of input, weight and bias; volumes and dilated ones have a bound."""
    if x.dim() == 5 or (conv.is_dilated and not conv.transposed):
        return _bound(conv, chip, x, weight, grad.shape)
    steps, groups = Allocations(), conv.groups
    columns = _columns(conv, x, weight, grad.shape)
    steps.append((*line, *copies(x, weight)))
    if groups == 1:
        _backward(steps, steps.result, conv, chip, columns, grad, wanted)
        return steps.timeline()
    part, slope = (tensor.narrow(1, 0, tensor.shape[1] // groups) for tensor in (x.contiguous(), grad))
    sizes = part.nbytes, weight.nbytes // groups, slope.shape[1] * x.itemsize
    parts = [size for size, is_wanted in zip(sizes, wanted) if is_wanted]
    for _ in range(groups):
        read = steps.buffer(copied(slope, suggested(slope))), steps.buffer(copied(part))
        take: Take = lambda place: steps.buffer(parts[place])  # noqa: E731
        _backward(steps, take, conv, chip, columns, slope.contiguous(memory_format=suggested(slope)), wanted)
        steps.free(*reversed(read))
    steps.result(*range(sum(wanted)))
    return steps.timeline()


def _backward(
    steps: Allocations, take: Take, conv: Convolution, chip: Chip, columns: int, grad: Tensor, wanted: Sequence[bool]
) -> None:
    """Allocate the gradients, as far as ``wanted``, of a group; ``take`` allocates the result at a place, or a part."""
    for_input, for_weight, for_bias = wanted
    of_weight, workspace = int(for_input), cublas(chip)
    # The bias's is the sum of a contiguous gradient over all axes but the channels'.
    summed = sum_course(chip, torch.empty_like(grad, memory_format=ROWS), (0, 2, 3)) if for_bias else ()
    if conv.transposed:  # Two kernels, each of which copies the gradient.
        if for_input:
            ready = steps.buffer(copied(grad))
            take(0)
            unfolded = steps.buffer(columns)
            steps.temporary(*workspace)
            steps.free(unfolded, ready)
        for place in range(of_weight, sum(wanted)):
            take(place)
        held = steps.append(buffers(copied(grad), columns)) if for_weight else ()
        if for_weight:
            steps.temporary(*workspace)
        steps.append(summed)
        steps.free(*reversed(held))
        return
    ready = steps.buffer(copied(grad))
    if for_input:
        take(0)
    unfolded = steps.buffer(columns if for_input else 0)
    if for_input:
        steps.temporary(*workspace)
    if for_bias:
        take(of_weight + for_weight)
        steps.append(summed)
    if for_weight:
        take(of_weight)
        unfolded = unfolded if for_input else steps.buffer(columns)
        steps.temporary(*workspace)
    steps.free(unfolded, ready)
