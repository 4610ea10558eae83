"""CUDA: scratch memory of convolutions, in the order of ATen's allocations.

First come copies of tensors that are not in the kernels' memory format, then each kernel's own workspace; cuDNN's is
from :mod:`.cudnn`. ATen/native/Convolution.cpp (``_convolution``, ``convolution_backward``) and ATen/native/cudnn/
ConvShared.cpp; ATen/native/cuda/DepthwiseConv2d.cu and DepthwiseConv3d.cu for depthwise convolutions; those
that cuDNN does not run are in :mod:`.columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...backends import allows_tf32
from ..registry import Course, Result, Workspace, lasting, reserve, scratch
from .allocations import Allocations, buffers, joined
from .blas import HANDLES, are_workspaces_kept, passing_bytes, workspace_bytes
from .chips import Chip
from .columns import backward_course, forward_course, output_bytes
from .cudnn.backend import Kind
from .cudnn.heuristics import Question
from .cudnn.queries import Cudnn
from .cudnn.route import Convolution, Route, Strided, copied, goes_last, laid_out, route, strided
from .cudnn.table import guess, trials_bytes
from .reductions import sum_course

SOURCE = "aten/src/ATen/native/Convolution.cpp, cudnn/ConvShared.cpp, cudnn/Conv_v8.cpp; cuDNN's own answers"


@scratch("cuda", "aten::convolution", "aten::_convolution", source=SOURCE)
def convolution(
    chip: Chip, cudnn: Cudnn, out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, *_: Any,
) -> Course:  # fmt: skip
    """Return the course of the forward; a transposed convolution runs the other's backward kernel.

    An empty batch is multiplied by the weight, flat.
    """
    if not x.numel():
        flat = strided(weight)
        return *buffers(0 if flat.is_contiguous(last=True) else copied(flat, flat.contiguous())), Result(0)
    conv = described(x, stride, padding, dilation, transposed, output_padding, groups)
    image, kernel = strided(x), strided(weight)
    line = as_line(x, image)
    path = route(conv, line, kernel, chip)
    if path is Route.COLUMNS:
        rows, passing = strided(out).shape[2:], passing_bytes(chip)
        return forward_course(conv, copied(image, line), line, kernel, rows, bias is not None, passing)
    last = path is Route.CUDNN and goes_last(conv, line, kernel)
    read = line.contiguous(last)
    copies = buffers(copied(image, line), copied(line, read))
    course: Course = (*copies, Result(0), *buffers(copied(kernel, kernel.contiguous(last))))
    if path is Route.DEPTHWISE:
        return course
    kind, (first, second) = Kind.FORWARD, (read.shape, strided(out).shape)
    if transposed:
        kind, first, second = Kind.BACKWARD_DATA, second, first
    later = gradients(x, weight, transposed)
    return *course, *workspaces(conv, cudnn, chip, kind, last, first, kernel, second, later)


@scratch("cuda", "aten::convolution_backward", source=SOURCE)
def convolution_backward(
    chip: Chip, cudnn: Cudnn, out: Any, grad: Any, x: Any, weight: Any, biases: Any, stride: Any,
    padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int, wanted: Sequence[bool],
) -> Course:  # fmt: skip
    """Return the course of the gradients of input and weights, then of the bias, a sum over all axes but the channels'.

    Source of the sum: ``grad_output.sum`` in ``convolution_backward``.
    """
    if not x.numel():
        return ()
    conv = described(x, stride, padding, dilation, transposed, output_padding, groups)
    image, kernel, slope = strided(x), strided(weight), strided(grad)
    line = as_line(x, image)
    path = route(conv, line, kernel, chip)
    if path is Route.COLUMNS:
        line_bytes, passing = copied(image, line), passing_bytes(chip)
        return backward_course(conv, chip, line_bytes, line, kernel, slope, wanted, passing)
    axes = [axis for axis in range(grad.dim()) if axis != 1]
    summed = sum_course(chip, grad, axes) if wanted[2] else ()
    if path is Route.DEPTHWISE and grad.dim() == 5:
        return depthwise_backward_3d(copied(image, line), line, kernel, slope, wanted, summed)
    steps = Allocations()
    steps.append(buffers(copied(image, line)))
    if path is Route.DEPTHWISE:
        depthwise_backward(steps, line, kernel, slope, wanted)
    else:
        read = line.contiguous(goes_last(conv, line, kernel)) if wanted[1] else line
        ready = as_input(slope, read, transposed)
        steps.append(buffers(copied(line, read), copied(slope, ready)))
        if wanted[0]:
            for_input(steps, conv, cudnn, chip, read, kernel, ready)
        if wanted[1]:
            for_weights(steps, conv, cudnn, chip, read, kernel, ready, int(wanted[0]))
    if wanted[2]:
        steps.result(sum(wanted) - 1)
        steps.append(summed)
    return steps.course()


@lasting("cuda", "aten::convolution", "aten::_convolution", source=HANDLES)
def forward_handle(
    chip: Chip, out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, *_: Any,
) -> tuple[tuple[str, int], ...]:  # fmt: skip
    """Return cuBLAS's workspace for the forward, if it multiplies columns."""
    return _handle(chip, x, weight, described(x, stride, padding, dilation, transposed, output_padding, groups))


@lasting("cuda", "aten::convolution_backward", source=HANDLES)
def backward_handle(
    chip: Chip, out: Any, grad: Any, x: Any, weight: Any, biases: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, wanted: Sequence[bool],
) -> tuple[tuple[str, int], ...]:  # fmt: skip
    """Return cuBLAS's workspace for the backward, if it multiplies columns."""
    return _handle(chip, x, weight, described(x, stride, padding, dilation, transposed, output_padding, groups))


def _handle(chip: Chip, x: Any, weight: Any, conv: Convolution) -> tuple[tuple[str, int], ...]:
    """Return cuBLAS's workspace if the convolution multiplies columns and torch keeps it; else it is in the course."""
    if not x.numel() or not are_workspaces_kept():
        return ()
    if route(conv, as_line(x, strided(x)), strided(weight), chip) is not Route.COLUMNS:
        return ()
    return (("cublas", workspace_bytes(chip)),)


@reserve("cuda", "aten::convolution", "aten::_convolution", source=SOURCE)
def unfolded_storage(
    chip: Chip, out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, *_: Any,
) -> tuple[int | None, ...]:  # fmt: skip
    """Return the bytes of the storage of a volume that columns add up to."""
    if not transposed or groups > 1 or x.dim() != 5 or not x.numel():
        return ()
    conv = described(x, stride, padding, dilation, transposed, output_padding, groups)
    if route(conv, strided(x), strided(weight), chip) is not Route.COLUMNS:
        return ()
    return (output_bytes(conv, strided(x), strided(weight), tuple(out.shape[2:])),)


def as_line(x: Any, image: Strided) -> Strided:
    """Return a single spatial axis contiguous, as ATen makes it before it runs the kernel; images as they are."""
    return image.contiguous() if x.dim() == 3 else image


def gradients(x: Any, weight: Any, transposed: bool) -> tuple[Kind, ...]:
    """Return the kinds of kernels that the backward of a convolution is going to run."""
    if not torch.is_grad_enabled():
        return ()
    for_x = (Kind.FORWARD if transposed else Kind.BACKWARD_DATA,) if x.requires_grad else ()
    return (*for_x, Kind.BACKWARD_FILTER) if weight.requires_grad else for_x


def as_input(grad: Strided, x: Strided, transposed: bool) -> Strided:
    """Return the gradient in the input's suggested format: ``contiguous()`` for a transposed one, else ``to()``."""
    if transposed:
        return grad.contiguous(x.suggests_last)
    return grad if grad.suggests_last == x.suggests_last else laid_out(grad, x.suggests_last)


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
    weight: Strided, y: tuple[int, ...], later: tuple[Kind, ...] = (),
) -> tuple[Workspace, ...]:  # fmt: skip
    """Return the workspaces of one cuDNN kernel; its gradients' kernels come ``later``.

    With ``cudnn.benchmark`` torch first tries all plans, in one workspace, and then empties the allocator's cache
    (``_cudnn_get_conv_benchmark_empty_cache``); which plan is fastest is unknown, and without cuDNN, so is the largest.
    """
    dtype = str(conv.dtype).removeprefix("torch.")
    question = Question(kind, dtype, last, x, weight.shape, y, conv.padding, conv.stride, conv.dilation)
    cudnn.expect(question, kind, *later)
    plans = cudnn.plans(question)
    if plans is None:
        size, low, high = guess(question, chip, conv.dtype is not torch.float32 or allows_tf32())
        tried: tuple[int, ...] = (size, 0)
        low, high = cudnn.split(low, high)
        largest, most = high, cudnn.within_memory(max(high, trials_bytes(question)))
    else:
        tried, largest, most = plans.tried, plans.largest, plans.largest
        low, high = cudnn.doubted(question, tried[0])
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
    x: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Convolution:
    """Return the convolution's settings; a single axis becomes two (``view1d_as_2d``)."""

    def axes(sizes: Sequence[int], missing: int) -> tuple[int, ...]:
        """Return one value per axis, with ``missing`` in front for a single axis."""
        every = tuple(sizes) * (x.dim() - 2) if len(sizes) == 1 else tuple(sizes)
        return (missing, *every) if len(every) == 1 else every

    return Convolution(
        x.dtype, axes(padding, 0), axes(stride, 1), axes(dilation, 1), transposed, axes(output_padding, 0), groups
    )
