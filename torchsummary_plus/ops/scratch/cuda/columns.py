"""CUDA: convolutions that cuDNN does not run, which unfold image by image into the columns of a matrix product.

ATen/native/cuda: ConvolutionMM2d.cu, NaiveDilatedConvolution.cu (also every 3-d convolution), and
NaiveConvolutionTranspose2d.cu and ...3d.cu. Groups run one after another and are then concatenated
(ATen/native/Convolution.cpp, ``_convolution``, ``convolution_backward``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from ..registry import Course
from .allocations import Allocations
from .chips import Chip
from .cudnn.route import Convolution, Strided, copied
from .reductions import sum_course


@dataclass(slots=True)
class Products(Allocations):
    """A course that multiplies matrices."""

    workspace: int = 0
    """Bytes of cuBLAS's workspace if torch frees it after each product, else 0."""

    def multiply(self) -> None:
        """Multiply matrices."""
        self.request_lasting()
        if self.workspace:
            self.temporary(self.workspace)


Take = Callable[[int], object]
"""Allocates the result at a place, or a group's part of it, which lives to the end."""


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A convolution with contiguous tensors; ``rows`` is the spatial shape of its output."""

    conv: Convolution
    x: Strided
    weight: Strided
    rows: tuple[int, ...]

    @property
    def is_deep(self) -> bool:
        """Whether it has three spatial axes."""
        return len(self.rows) == 3

    @property
    def is_plain_2d(self) -> bool:
        """Whether the kernel is ``_slow_conv2d``."""
        return not (self.is_deep or self.conv.transposed or self.conv.is_dilated)

    @property
    def needs_columns(self) -> bool:
        """Whether the forward unfolds: ``_slow_conv2d`` multiplies the image itself if the kernel is a point."""
        conv = self.conv
        is_moved = any(step != 1 for step in conv.stride) or any(conv.padding)
        return not self.is_plain_2d or is_moved or prod(self.weight.shape[2:]) != 1

    @property
    def columns(self) -> int:
        """The bytes of one image's columns: a transposed convolution unfolds its output, others their input."""
        places = self.x.shape[2:] if self.conv.transposed else self.rows
        return self.weight.shape[1] * prod(self.weight.shape[2:]) * prod(places) * self.x.itemsize

    @property
    def channels(self) -> int:
        """The channels of the output."""
        return self.weight.shape[1 if self.conv.transposed else 0]

    @property
    def written(self) -> int:
        """The bytes of the output."""
        return self.x.shape[0] * self.channels * prod(self.rows) * self.x.itemsize

    @property
    def storage(self) -> int:
        """The bytes of the output's storage: ``slow_conv_transpose3d`` resizes a tensor of its input's shape."""
        return max(self.written, self.x.nbytes) if self.conv.transposed and self.is_deep else self.written

    def sum_of_batch(self, chip: Chip) -> Course:
        """Return the staging buffers of the sum of a contiguous gradient over all axes but the channels'."""
        return self._summed(chip, self.x.shape[0], (0, *range(2, 2 + len(self.rows))))

    def sum_of_image(self, chip: Chip) -> Course:
        """Return those of the sum of one image's gradient."""
        return self._summed(chip, 1, tuple(range(2, 2 + len(self.rows))))

    def _summed(self, chip: Chip, batch: int, axes: tuple[int, ...]) -> Course:
        grad = torch.empty(batch, self.channels, *self.rows, dtype=self.conv.dtype, device="meta")
        return sum_course(chip, grad, axes)

    def group(self) -> Unfolded:
        """Return the call for one group (``subtensor``)."""
        groups = self.conv.groups
        return Unfolded(self.conv, self.x.part(1, groups).contiguous(), self.weight.part(0, groups), self.rows)


def forward_course(
    conv: Convolution, before: int, x: Strided, weight: Strided, rows: tuple[int, ...], biased: bool, workspace: int = 0
) -> Course:
    """Return the allocations of the forward, after ``before`` bytes of a copied line.

    ``workspace`` is the bytes that each product allocates and frees.
    """
    steps, call = _begun(conv, before, x, weight, rows, workspace)
    if conv.groups == 1:
        _forward(call, steps, steps.result, biased)
        return steps.course()
    part = call.group()
    for _ in range(conv.groups):
        read = steps.buffer(copied(call.x.part(1, conv.groups), part.x))
        _forward(part, steps, lambda _: steps.buffer(part.storage), biased)
        steps.free(read)
    steps.result(0)
    return steps.course()


def output_bytes(conv: Convolution, x: Strided, weight: Strided, rows: tuple[int, ...]) -> int:
    """Return the bytes of the output's storage."""
    return Unfolded(conv, x, weight, rows).storage


def _begun(
    conv: Convolution, before: int, x: Strided, weight: Strided, rows: tuple[int, ...], workspace: int
) -> tuple[Products, Unfolded]:
    steps, call = Products(workspace=workspace), Unfolded(conv, x.contiguous(), weight.contiguous(), rows)
    for nbytes in (before, copied(x, call.x), copied(weight, call.weight)):
        steps.buffer(nbytes)
    return steps, call


def _forward(call: Unfolded, steps: Products, take: Take, biased: bool) -> None:
    if call.conv.transposed and call.is_deep and call.written > call.x.nbytes:
        small = steps.buffer(call.x.nbytes)
        take(0)
        steps.free(small)
    else:
        take(0)
    unfolded = steps.buffer(call.columns if call.needs_columns else 0)
    ones = steps.buffer(prod(call.rows) * call.x.itemsize if biased and call.conv.transposed else 0)
    steps.multiply()
    steps.free(ones, unfolded)


def backward_course(
    conv: Convolution, chip: Chip, before: int, x: Strided, weight: Strided, grad: Strided, wanted: Sequence[bool],
    workspace: int = 0,
) -> Course:  # fmt: skip
    """Return the allocations of the gradients on a GPU, as :func:`forward_course` does."""
    steps, call = _begun(conv, before, x, weight, grad.shape[2:], workspace)
    if conv.groups == 1:
        _backward(call, chip, steps, steps.result, grad, wanted)
        return steps.course()
    part, slope = call.group(), grad.part(1, conv.groups)
    ready = slope.contiguous(slope.suggests_last)
    sizes = part.x.nbytes, part.weight.nbytes, part.channels * x.itemsize
    wanted_sizes = [size for size, is_wanted in zip(sizes, wanted) if is_wanted]
    for _ in range(conv.groups):
        inputs = steps.buffer(copied(slope, ready)), steps.buffer(copied(call.x.part(1, conv.groups), part.x))
        _backward(part, chip, steps, lambda place: steps.buffer(wanted_sizes[place]), ready, wanted)
        steps.free(*reversed(inputs))
    for place in range(sum(wanted)):
        steps.result(place)
    return steps.course()


def _backward(call: Unfolded, chip: Chip, steps: Products, take: Take, grad: Strided, wanted: Sequence[bool]) -> None:
    """Allocate the gradients, as far as ``wanted``, of the input, the weight and the bias."""
    for_input, for_weight, for_bias = wanted
    weight, bias = int(for_input), int(for_input) + int(for_weight)
    slope = copied(grad, grad.contiguous())
    if call.conv.transposed:
        _backward_transposed(call, chip, steps, take, slope, wanted)
        return
    ready, unfolded = steps.buffer(slope), None
    if for_input:
        take(0)
    if call.is_plain_2d:
        unfolded = steps.buffer(call.columns) if for_input else None
        if for_input:
            steps.multiply()
        if for_bias:
            take(bias)
            steps.append(call.sum_of_batch(chip))
    if for_weight:
        take(weight)
    if for_bias and not call.is_plain_2d:
        take(bias)
    if unfolded is None:
        unfolded = steps.buffer(call.columns if for_input or for_weight else 0)
    if for_weight or (for_input and not call.is_plain_2d):
        steps.multiply()
    if for_bias and not call.is_plain_2d:
        total = steps.buffer(call.channels * call.x.itemsize)
        steps.append(call.sum_of_image(chip))
        steps.free(total)
    steps.free(unfolded, ready)


def _backward_transposed(
    call: Unfolded, chip: Chip, steps: Products, take: Take, slope: int, wanted: Sequence[bool]
) -> None:
    """Allocate as the two kernels of a transposed convolution, each of which copies the gradient's ``slope`` bytes."""
    for_input, for_weight, for_bias = wanted
    if for_input:
        ready = steps.buffer(slope)
        take(0)
        unfolded = steps.buffer(call.columns)
        steps.multiply()
        steps.free(unfolded, ready)
    if for_weight:
        take(int(for_input))
    if for_bias:
        take(int(for_input) + int(for_weight))
    if for_weight:
        ready, unfolded = steps.buffer(slope), steps.buffer(call.columns)
        steps.multiply()
    if for_bias:
        steps.append(call.sum_of_batch(chip))
    if for_weight:
        steps.free(unfolded, ready)
