"""Which kernels torch runs for a convolution on CUDA: cuDNN's, its own depthwise ones, or im2col and products.

Source: ``_select_conv_backend``, ``ConvParams::use_cudnn`` and ``use_cudnn_depthwise`` in
aten/src/ATen/native/Convolution.cpp, of builds with cuDNN 9.3 or later.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from typing import Any

import torch

from .....data.capability import Capability
from ....backends import takes_cudnn
from ....strides import channels_last, contiguous, suggests_channels_last

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

    def part(self, axis: int, parts: int) -> Strided:
        """Return one of ``parts`` equal parts of an axis, as a view."""
        shape = (*self.shape[:axis], self.shape[axis] // parts, *self.shape[axis + 1 :])
        return Strided(shape, self.strides, self.itemsize)


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
