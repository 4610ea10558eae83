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
from enum import Enum, auto
from math import prod
from typing import Any

import torch

from ....data.capability import Capability, Chip
from ...backends import allows_tf32, takes_cudnn
from ...strides import channels_last, contiguous, suggests_channels_last
from ..allocations import Allocations, buffers, joined, nbytes
from ..registry import AtMost, Course, Result, Workspace, lasting, reserve, scratch
from .blas import HANDLES, Kept, are_workspaces_kept, passing_bytes, workspace_bytes
from .cudnn.backend import Kind, Question
from .cudnn.queries import Cudnn
from .cudnn.table import guess, trials_bytes
from .reductions import sum_course

SOURCE = "aten/src/ATen/native/Convolution.cpp, cudnn/ConvShared.cpp, cudnn/Conv_v8.cpp; cuDNN's own answers"


MANY = 2**31
"""Elements from which 32-bit indices overflow."""


class Route(Enum):
    """Implementations of a convolution."""

    CUDNN = auto()
    DEPTHWISE = auto()
    COLUMNS = auto()


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


def route(conv: Convolution, x: Strided, weight: Strided, capability: Capability) -> Route:
    """Return the implementation for an input and weights."""
    cudnn = takes_cudnn(conv.dtype, conv.stride, conv.output_padding, capability)
    channels = x.shape[1]
    is_depthwise = not conv.transposed and channels == conv.groups > 1 and weight.shape[0] % channels == 0
    if not is_depthwise:
        return Route.CUDNN if cudnn else Route.COLUMNS
    if goes_last(conv, x, weight) and cudnn:
        return Route.CUDNN
    if max(prod(x.shape), prod(weight.shape)) >= MANY:
        return Route.CUDNN
    return Route.CUDNN if cudnn and _cudnn_is_faster(conv, x, weight, capability) else Route.DEPTHWISE


def goes_last(conv: Convolution, first: Strided, second: Strided) -> bool:
    """Whether cuDNN gets channels-last tensors (``cudnn_conv_suggest_memory_format``)."""
    return conv.dtype is not torch.float64 and (first.suggests_last or second.suggests_last)


def _cudnn_is_faster(conv: Convolution, x: Strided, weight: Strided, capability: Capability) -> bool:
    """``check_cudnn_depthwise_workload_with_filter``, for half-precision images."""
    if conv.dtype is not torch.float16 or len(x.shape) != 4 or conv.is_dilated or capability < (7, 0):
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


@dataclass(frozen=True, slots=True)
class Strided:
    """A batch of 2-d or 3-d images with channels."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous copy."""
        return prod(self.shape) * self.itemsize

    @property
    def suggests_last(self) -> bool:
        """Whether the strides suggest channels-last; not if both formats fit."""
        return suggests_channels_last(self.shape, self.strides)

    def is_contiguous(self, last: bool = False) -> bool:
        """Whether the tensor is contiguous in channels-last (``last``) or row-major order."""
        dense = (channels_last if last else contiguous)(self.shape)
        return all(size == 1 or a == b for size, a, b in zip(self.shape, self.strides, dense))

    def contiguous(self, last: bool = False) -> Strided:
        """Return the tensor itself if contiguous in the format, else its copy."""
        return self if self.is_contiguous(last) else laid_out(self, last)

    def part(self, parts: int) -> Strided:
        """Return one of ``parts`` equal parts of the channels, as a view."""
        return Strided((self.shape[0], self.shape[1] // parts, *self.shape[2:]), self.strides, self.itemsize)


def strided(tensor: Any) -> Strided:
    """Return a tensor's shape and strides; a single spatial axis becomes two, the first of length 1 (``view4d``)."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if len(shape) == 3:
        shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
    return Strided(shape, strides, tensor.element_size())


def laid_out(tensor: Strided, last: bool) -> Strided:
    """Return a new contiguous tensor of the same shape."""
    return Strided(tensor.shape, (channels_last if last else contiguous)(tensor.shape), tensor.itemsize)


def copied(before: Strided, after: Strided) -> int:
    """Return the bytes of turning one tensor into the other: 0 if it is the same."""
    return 0 if after == before else after.nbytes


@scratch("cuda", "aten::convolution", "aten::_convolution", source=SOURCE)
def convolution(chip: Chip, cudnn: Cudnn, out: Any, x: Any, weight: Any, bias: Any, *settings: Any) -> Course | AtMost:
    """Return the course of the forward; a transposed convolution runs the other's backward kernel.

    An empty batch is multiplied by the weight, flat.
    """
    if not x.numel():
        flat = strided(weight)
        return *buffers(0 if flat.is_contiguous(last=True) else copied(flat, flat.contiguous())), Result(0)
    conv, image, kernel = described(x, *settings), strided(x), strided(weight)
    line = as_line(x, image)
    path = route(conv, line, kernel, chip)
    if path is Route.COLUMNS:
        y, workspace = strided(out).shape, passing_bytes(chip)
        return forward_course(conv, copied(image, line), line, kernel, y, bias is not None, workspace)
    last = path is Route.CUDNN and goes_last(conv, line, kernel)
    read = line.contiguous(last)
    copies = buffers(copied(image, line), copied(line, read))
    course: Course = (*copies, Result(0), *buffers(copied(kernel, kernel.contiguous(last))))
    if path is Route.DEPTHWISE:
        return course
    kind, (first, second) = Kind.FORWARD, (read.shape, strided(out).shape)
    if conv.transposed:
        kind, first, second = Kind.BACKWARD_DATA, second, first
    return *course, *workspaces(conv, cudnn, chip, kind, last, first, kernel, second)


@scratch("cuda", "aten::convolution_backward", source=SOURCE)
def convolution_backward(
    chip: Chip, cudnn: Cudnn, out: Any, grad: Any, x: Any, weight: Any, biases: Any, *settings: Any
) -> Course | AtMost:
    """Return the course of the gradients of input and weights, then of the bias, a sum over all axes but the channels'.

    Source of the sum: ``grad_output.sum`` in ``convolution_backward``.
    """
    if not x.numel():
        return ()
    conv, image, kernel, slope = described(x, *settings), strided(x), strided(weight), strided(grad)
    wanted, line = settings[6], as_line(x, image)
    path = route(conv, line, kernel, chip)
    if path is Route.COLUMNS:
        workspace = passing_bytes(chip)
        return backward_course(conv, chip, copied(image, line), line, kernel, slope, wanted, workspace)
    axes = [axis for axis in range(grad.dim()) if axis != 1]
    summed = sum_course(chip, grad, axes) if wanted[2] else ()
    if path is Route.DEPTHWISE and grad.dim() == 5:
        return depthwise_backward_3d(copied(image, line), line, kernel, slope, wanted, summed)
    steps = Allocations()
    steps.append(buffers(copied(image, line)))
    if path is Route.DEPTHWISE:
        depthwise_backward(steps, line, kernel, slope, wanted)
    else:
        read, ready = line.contiguous(goes_last(conv, line, kernel)) if wanted[1] else line, slope
        if conv.transposed:
            ready = slope.contiguous(read.suggests_last)  # Others are only brought to the input's format, by ``to()``.
        elif slope.suggests_last != read.suggests_last:
            ready = laid_out(slope, read.suggests_last)
        steps.append(buffers(copied(line, read), copied(slope, ready)))
        if wanted[0]:
            for_input(steps, conv, cudnn, chip, read, kernel, ready)
        if wanted[1]:
            for_weights(steps, conv, cudnn, chip, read, kernel, ready, int(wanted[0]))
    if wanted[2]:
        steps.result(sum(wanted) - 1)
        steps.append(summed)
    return steps.course()


def _multiplies(chip: Chip, x: Any, weight: Any, settings: tuple[Any, ...]) -> bool:
    """Whether the convolution multiplies columns."""
    kernel = strided(weight)
    return bool(x.numel()) and route(described(x, *settings), as_line(x, strided(x)), kernel, chip) is Route.COLUMNS


@lasting("cuda", "aten::convolution", "aten::_convolution", source=HANDLES)
def forward_handle(chip: Chip, out: Any, x: Any, weight: Any, bias: Any, *settings: Any) -> Kept:
    """Return cuBLAS's workspace for columns, if torch keeps it; else it is in the course."""
    is_requested = are_workspaces_kept() and _multiplies(chip, x, weight, settings)
    return (("cublas", workspace_bytes(chip)),) if is_requested else ()


lasting("cuda", "aten::convolution_backward", source=HANDLES)(
    lambda chip, out, grad, *call: forward_handle(chip, out, *call)
)


@reserve("cuda", "aten::convolution", "aten::_convolution", source=SOURCE)
def unfolded_storage(chip: Chip, out: Any, x: Any, weight: Any, bias: Any, *settings: Any) -> tuple[int | None, ...]:
    """Return the bytes of the storage of a transposed volume: ``slow_conv_transpose3d`` resizes its input's shape."""
    *_, transposed, _, groups = settings[:6]
    is_resized = transposed and groups == 1 and x.dim() == 5 and _multiplies(chip, x, weight, settings)
    return (max(nbytes(out), nbytes(x)),) if is_resized else ()


def as_line(x: Any, image: Strided) -> Strided:
    """Return a single spatial axis contiguous, as ATen makes it before it runs the kernel; images as they are."""
    return image.contiguous() if x.dim() == 3 else image


def for_input(
    steps: Allocations, conv: Convolution, cudnn: Cudnn, chip: Chip, x: Strided, weight: Strided,
    grad: Strided,
) -> None:  # fmt: skip
    """Allocate as ``cudnn_convolution_backward_input`` or ``..._transpose_backward_input``."""
    last = goes_last(conv, grad, weight)
    steps.result(0)
    copies = steps.append(buffers(copied(weight, weight.contiguous(last)), copied(grad, grad.contiguous(last))))
    kind, first, second = Kind.BACKWARD_DATA, x.shape, grad.shape
    if conv.transposed:
        kind, first, second = Kind.FORWARD, second, first
    steps.append(workspaces(conv, cudnn, chip, kind, last, first, weight, second))
    steps.free(*copies)


def for_weights(
    steps: Allocations, conv: Convolution, cudnn: Cudnn, chip: Chip, x: Strided, weight: Strided,
    grad: Strided, place: int,
) -> None:  # fmt: skip
    """Allocate as ``cudnn_convolution_backward_weight``; transposed ones exchange input and gradient."""
    last = goes_last(conv, x, grad)
    image, slope = (grad, x) if conv.transposed else (x, grad)
    copies = steps.append(buffers(copied(slope, slope.contiguous(last)), copied(image, image.contiguous(last))))
    steps.result(place)
    steps.append(workspaces(conv, cudnn, chip, Kind.BACKWARD_FILTER, last, image.shape, weight, slope.shape))
    steps.free(*copies)


def workspaces(
    conv: Convolution, cudnn: Cudnn, chip: Chip, kind: Kind, last: bool, x: tuple[int, ...],
    weight: Strided, y: tuple[int, ...],
) -> tuple[Workspace, ...]:  # fmt: skip
    """Return the workspaces of one cuDNN kernel.

    With ``cudnn.benchmark`` torch first tries all plans, in one workspace, and then empties the allocator's cache
    (``_cudnn_get_conv_benchmark_empty_cache``); which plan is fastest is unknown, and without cuDNN, so is the largest.
    """
    dtype = str(conv.dtype).removeprefix("torch.")
    question = Question(kind, dtype, last, x, weight.shape, y, conv.padding, conv.stride, conv.dilation)
    plans = cudnn.plans(question)
    if plans is None:
        size, low, high = guess(question, chip, conv.dtype is not torch.float32 or allows_tf32())
        tried: tuple[int, ...] = (size, 0)
        low, high = cudnn.split(low, high)
        largest, most = high, cudnn.within_memory(max(high, trials_bytes(question)))
    else:
        tried, largest, most = plans.tried, plans.largest, plans.largest
        low, high = cudnn.split(tried[0], tried[0])
    trials: tuple[Workspace, ...] = ()
    if torch.backends.cudnn.benchmark:
        low, high = 0, most
        if cudnn.is_new(question):
            band = 0.0 if plans else max(1.0, (most - largest) / max(1, largest))
            trials = (Workspace(largest, band, (largest // 2, 0), empties=True),)
    band = max(tried[0] - low, high - tried[0]) / max(1, tried[0])
    return *trials, Workspace(tried[0], band, tried[1:])


def depthwise_backward(steps: Allocations, x: Strided, weight: Strided, grad: Strided, wanted: Sequence[bool]) -> None:
    """Allocate as torch's own depthwise kernels, which need contiguous tensors; weights come first."""
    copies = [*steps.append(buffers(copied(grad, grad.contiguous())))]
    if wanted[1]:
        image = steps.append(buffers(copied(x, x.contiguous())))
        steps.result(int(wanted[0]))
        steps.free(*image)
    if wanted[0]:
        steps.result(0)
        copies += steps.append(buffers(copied(weight, weight.contiguous())))
    steps.free(*copies)


def depthwise_backward_3d(
    line: int, x: Strided, weight: Strided, grad: Strided, wanted: Sequence[bool], summed: Course
) -> Course:
    """Return the course of the 3-d kernels, which hold contiguous copies while they sum the bias's gradient."""
    results = tuple(Result(place) for place in range(sum(wanted)))
    first = int(wanted[0]) + int(wanted[1])
    contiguous = buffers(line, *(copied(tensor, tensor.contiguous()) for tensor in (grad, x, weight)))
    return joined(results[:first], contiguous, results[first:], summed)


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


def _columns(conv: Convolution, x: Strided, weight: Strided, y: Sequence[int]) -> int:
    """Return the bytes of one image's columns: a transposed convolution unfolds its output, others their input."""
    places = x.shape[2:] if conv.transposed else y[2:]
    return weight.shape[1] * prod(weight.shape[2:]) * prod(places) * x.itemsize


def _bound(conv: Convolution, x: Strided, weight: Strided, y: Sequence[int], workspace: int) -> AtMost:
    """Return the bound of a rare one: columns, and each tensor copied, in parts and as parts."""
    tensors = x.nbytes + weight.nbytes + prod(y) * x.itemsize
    return AtMost(3 * tensors + _columns(conv, x, weight, y) + workspace)


def _is_plain_2d(conv: Convolution, x: Strided) -> bool:
    """Whether the kernel is ``_slow_conv2d``."""
    return len(x.shape) == 4 and not (conv.transposed or conv.is_dilated)


def forward_course(
    conv: Convolution, before: int, x: Strided, weight: Strided, y: Sequence[int], biased: bool, workspace: int
) -> Course | AtMost:
    """Return the allocations of the forward, after ``before`` bytes of a copied line; volumes have a bound.

    ``y`` is the output's shape, ``workspace`` the bytes that each product allocates and frees.
    """
    if len(y) == 5:
        return _bound(conv, x, weight, y, workspace)
    steps, groups = Allocations(), conv.groups
    steps.append(buffers(before, copied(x, x.contiguous()), copied(weight, weight.contiguous())))
    part = x.contiguous().part(groups)
    is_moved = any(step != 1 for step in conv.stride) or any(conv.padding)
    is_image = _is_plain_2d(conv, x) and not is_moved and prod(weight.shape[2:]) == 1  # Multiplied as it is.
    for _ in range(groups):
        read = steps.buffer(copied(part, part.contiguous()))
        if groups == 1:
            steps.result(0)
        else:
            steps.buffer(prod(y) // groups * x.itemsize)
        unfolded = steps.buffer(0 if is_image else _columns(conv, x, weight, y))
        ones = steps.buffer(prod(y[2:]) * x.itemsize if biased and conv.transposed else 0)
        steps.multiply(workspace)
        steps.free(ones, unfolded, read)
    if groups > 1:
        steps.result(0)
    return steps.course()


def backward_course(
    conv: Convolution, chip: Chip, before: int, x: Strided, weight: Strided, grad: Strided, wanted: Sequence[bool],
    workspace: int,
) -> Course | AtMost:  # fmt: skip
    """Return the allocations of the gradients of input, weight and bias; volumes and dilated ones have a bound."""
    if len(x.shape) == 5 or (conv.is_dilated and not conv.transposed):
        return _bound(conv, x, weight, grad.shape, workspace)
    steps, groups = Allocations(), conv.groups
    columns = _columns(conv, x, weight, grad.shape)
    steps.append(buffers(before, copied(x, x.contiguous()), copied(weight, weight.contiguous())))
    if groups == 1:
        _backward(steps, steps.result, conv, chip, columns, grad, wanted, workspace)
        return steps.course()
    part, slope = x.contiguous().part(groups), grad.part(groups)
    ready = slope.contiguous(slope.suggests_last)
    sizes = part.nbytes, weight.nbytes // groups, slope.shape[1] * x.itemsize
    parts = [size for size, is_wanted in zip(sizes, wanted) if is_wanted]
    for _ in range(groups):
        read = steps.buffer(copied(slope, ready)), steps.buffer(copied(part, part.contiguous()))
        take: Take = lambda place: steps.buffer(parts[place])  # noqa: E731
        _backward(steps, take, conv, chip, columns, ready, wanted, workspace)
        steps.free(*reversed(read))
    steps.result(*range(sum(wanted)))
    return steps.course()


def _backward(
    steps: Allocations, take: Take, conv: Convolution, chip: Chip, columns: int, grad: Strided, wanted: Sequence[bool],
    workspace: int,
) -> None:  # fmt: skip
    """Allocate the gradients, as far as ``wanted``, of a group; ``take`` allocates the result at a place, or a part."""
    for_input, for_weight, for_bias = wanted
    of_weight, of_bias = int(for_input), int(for_input) + int(for_weight)
    # The bias's is the sum of a contiguous gradient over all axes but the channels'.
    summed = torch.empty(*grad.shape, dtype=conv.dtype, device="meta") if for_bias else None
    slope = copied(grad, grad.contiguous())
    if conv.transposed:  # Two kernels, each of which copies the gradient.
        if for_input:
            ready = steps.buffer(slope)
            take(0)
            unfolded = steps.buffer(columns)
            steps.multiply(workspace)
            steps.free(unfolded, ready)
        for place in range(of_weight, sum(wanted)):
            take(place)
        copies = steps.append(buffers(slope, columns)) if for_weight else ()
        if for_weight:
            steps.multiply(workspace)
        steps.append(() if summed is None else sum_course(chip, summed, (0, 2, 3)))
        steps.free(*reversed(copies))
        return
    ready = steps.buffer(slope)
    if for_input:
        take(0)
    unfolded = steps.buffer(columns if for_input else 0)
    if for_input:
        steps.multiply(workspace)
    if summed is not None:
        take(of_bias)
        steps.append(sum_course(chip, summed, (0, 2, 3)))
    if for_weight:
        take(of_weight)
        unfolded = unfolded if for_input else steps.buffer(columns)
        steps.multiply(workspace)
    steps.free(unfolded, ready)
