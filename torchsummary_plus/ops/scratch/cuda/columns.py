"""CUDA: convolutions that cuDNN does not run, which unfold image by image into the columns of a matrix product.

ATen/native/cuda: ConvolutionMM2d.cu, NaiveDilatedConvolution.cu (also every 3-d convolution), and
NaiveConvolutionTranspose2d.cu and ...3d.cu. Groups run one after another and are then concatenated
(ATen/native/Convolution.cpp, ``_convolution``, ``convolution_backward``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from ..registry import Alloc, Course, Free, Result
from ..strided import Strided, copied
from .cudnn.route import Convolution


@dataclass(slots=True)
class Allocations:
    """A course as it is written."""

    workspace: int
    """The bytes of cuBLAS's workspace if torch frees it after each product, else 0."""
    steps: list[Result | Alloc | Free] = field(default_factory=list)
    buffers: int = 0

    def result(self, place: int) -> None:
        """Allocate a result."""
        self.steps.append(Result(place))

    def buffer(self, nbytes: int) -> int:
        """Allocate a buffer and return its number."""
        self.steps.append(Alloc(nbytes))
        self.buffers += 1
        return self.buffers - 1

    def keep(self, nbytes: int) -> None:
        """Allocate a buffer that lives to the end: a group's part of a result."""
        self.buffer(nbytes)

    def free(self, *buffers: int) -> None:
        """Free buffers."""
        self.steps += (Free(buffer) for buffer in buffers)

    def multiply(self) -> None:
        """Multiply matrices."""
        self.free(self.buffer(self.workspace))

    def course(self) -> Course:
        """Return the course, whose end frees what is left: cuBLAS requests its own workspace before that."""
        steps = list(self.steps)
        while steps and isinstance(steps[-1], Free):
            steps.pop()
        return tuple(steps)


Take = Callable[[int], None]
"""Allocates the result at a place, or for a group its part of it."""


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

    def group(self) -> Unfolded:
        """Return the call for one group (``subtensor``)."""
        groups = self.conv.groups
        return Unfolded(self.conv, self.x.part(1, groups).contiguous(), self.weight.part(0, groups), self.rows)


def forward_course(
    conv: Convolution, before: int, x: Strided, weight: Strided, rows: tuple[int, ...], biased: bool, workspace: int = 0
) -> Course:
    """Return the allocations of the forward, after ``before`` bytes of a copied line.

    ``workspace`` is what each product allocates and frees.
    """
    done, call = _begun(conv, before, x, weight, rows, workspace)
    if conv.groups == 1:
        _forward(call, done, done.result, biased)
        return done.course()
    part = call.group()
    for _ in range(conv.groups):
        read = done.buffer(copied(call.x.part(1, conv.groups), part.x))
        _forward(part, done, lambda _: done.keep(part.storage), biased)
        done.free(read)
    done.result(0)
    return done.course()


def output_bytes(conv: Convolution, x: Strided, weight: Strided, rows: tuple[int, ...]) -> int:
    """Return the bytes of the output's storage."""
    return Unfolded(conv, x, weight, rows).storage


def _begun(
    conv: Convolution, before: int, x: Strided, weight: Strided, rows: tuple[int, ...], workspace: int
) -> tuple[Allocations, Unfolded]:
    done, call = Allocations(workspace), Unfolded(conv, x.contiguous(), weight.contiguous(), rows)
    for nbytes in (before, copied(x, call.x), copied(weight, call.weight)):
        done.buffer(nbytes)
    return done, call


def _forward(call: Unfolded, done: Allocations, take: Take, biased: bool) -> None:
    if call.conv.transposed and call.is_deep and call.written > call.x.nbytes:
        small = done.buffer(call.x.nbytes)
        take(0)
        done.free(small)
    else:
        take(0)
    unfolded = done.buffer(call.columns if call.needs_columns else 0)
    ones = done.buffer(prod(call.rows) * call.x.itemsize if biased and call.conv.transposed else 0)
    done.multiply()
    done.free(ones, unfolded)


def backward_course(
    conv: Convolution, before: int, x: Strided, weight: Strided, grad: Strided, wanted: Sequence[bool],
    workspace: int = 0,
) -> Course:  # fmt: skip
    """Return the allocations of the gradients, as :func:`forward_course` does."""
    done, call = _begun(conv, before, x, weight, grad.shape[2:], workspace)
    if conv.groups == 1:
        _backward(call, done, done.result, grad, wanted)
        return done.course()
    part, slope = call.group(), grad.part(1, conv.groups)
    ready = slope.contiguous(slope.suggests_last)
    sizes = part.x.nbytes, part.weight.nbytes, part.channels * x.itemsize
    asked = [size for size, is_wanted in zip(sizes, wanted) if is_wanted]
    for _ in range(conv.groups):
        held = done.buffer(copied(slope, ready)), done.buffer(copied(call.x.part(1, conv.groups), part.x))
        _backward(part, done, lambda place: done.keep(asked[place]), ready, wanted)
        done.free(*reversed(held))
    for place in range(sum(wanted)):
        done.result(place)
    return done.course()


def _backward(call: Unfolded, done: Allocations, take: Take, grad: Strided, wanted: Sequence[bool]) -> None:
    """Allocate the gradients, as far as ``wanted``, of the input, the weight and the bias."""
    for_input, for_weight, for_bias = wanted
    weight, bias = int(for_input), int(for_input) + int(for_weight)
    slope = copied(grad, grad.contiguous())
    if call.conv.transposed:
        _backward_transposed(call, done, take, slope, wanted)
        return
    ready, unfolded = done.buffer(slope), None
    if for_input:
        take(0)
    if call.is_plain_2d:
        unfolded = done.buffer(call.columns) if for_input else None
        if for_bias:
            take(bias)
    if for_weight:
        take(weight)
    if for_bias and not call.is_plain_2d:
        take(bias)
    if unfolded is None:
        unfolded = done.buffer(call.columns if for_input or for_weight else 0)
    if for_input or for_weight:
        done.multiply()
    if for_bias and not call.is_plain_2d:
        done.free(done.buffer(call.channels * call.x.itemsize))
    done.free(unfolded, ready)


def _backward_transposed(call: Unfolded, done: Allocations, take: Take, slope: int, wanted: Sequence[bool]) -> None:
    """Allocate as the two kernels of a transposed convolution, each of which copies the gradient's ``slope`` bytes."""
    for_input, for_weight, for_bias = wanted
    if for_input:
        ready = done.buffer(slope)
        take(0)
        unfolded = done.buffer(call.columns)
        done.multiply()
        done.free(unfolded, ready)
    if for_weight:
        take(int(for_input))
    if for_bias:
        take(int(for_input) + int(for_weight))
    if for_weight:
        ready, unfolded = done.buffer(slope), done.buffer(call.columns)
        done.multiply()
        done.free(unfolded, ready)
