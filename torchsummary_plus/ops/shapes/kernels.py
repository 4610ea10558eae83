"""Rules for results that kernels lay out differently from torch's meta kernels; steps need the real layout.

Meta kernels written in Python differ for tensors that are both row-major and channels-last, such as images of one pixel
or one channel, for operands of different layouts, and for some operators altogether. Each rule follows its source in
``aten/src/ATen/native``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..bags import MAX, SUM, takes_fbgemm
from ..conv_backend import keeps_last_on_cuda, takes_onednn
from .images import check_reflected, gathered, padded
from .kernel_tables import CPU_RULES, KERNEL_RULES, register
from .pointwise import Operand, promoted, result
from .registry import (
    FLOATS,
    Out,
    Outs,
    Sizes,
    channels_last,
    each,
    fresh,
    in_format_of,
    is_channels_last,
    numel,
    only_wanted,
    preserved_strides,
    sure,
)

# Element by element: TensorIterator, whose meta kernels are decompositions


def _through_iterator(names: str, *positions: int) -> None:
    """Register operators whose kernels iterate over the arguments at ``positions``, in the kernel's order."""

    def backward(*args: Any, **options: Any) -> Out:
        return _alike(*(args[place] for place in positions))

    register(KERNEL_RULES, names)(backward)


def _alike(*tensors: Tensor) -> Out:
    """Return the result of an operator on tensors of one shape and dtype."""
    first = tensors[0]
    sure(first.dtype in FLOATS and numel(first.shape))
    sure(all(tensor.shape == first.shape and tensor.dtype is first.dtype for tensor in tensors))
    return result(tensors, first.dtype)


_through_iterator("hardswish_backward hardsigmoid_backward hardtanh_backward softplus_backward mish_backward", 0, 1)
_through_iterator("silu_backward gelu_backward logit_backward", 0, 1)
_through_iterator("sigmoid_backward tanh_backward", 0, 1)
_through_iterator("threshold_backward leaky_relu_backward", 1, 0)
_through_iterator("elu_backward", 0, 5)


@register(KERNEL_RULES, "_prelu_kernel_backward")
def prelu_backward(x: Tensor, weight: Tensor, grad: Tensor) -> Outs:
    """The gradients of input and weight, both in the layout of the iterator over input and gradient."""
    out = _alike(x, grad)
    sure(weight.dtype is x.dtype and weight.dim() == x.dim())
    return [out, out]


@register(KERNEL_RULES, "glu_backward")
def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Out:
    """The input's gradient, row-major."""
    sure(grad.dtype is x.dtype and x.dtype in FLOATS and grad.dim() == x.dim() and numel(x.shape))
    return fresh(x.shape, x.dtype)


@register(KERNEL_RULES, "native_dropout_backward")
def dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Out:
    """The input's gradient, in the layout of the iterator over gradient and mask."""
    sure(grad.dtype in FLOATS and mask.dtype is torch.bool and grad.shape == mask.shape and numel(grad.shape))
    return result([grad, mask], grad.dtype)


@register(CPU_RULES, "native_dropout")
def dropout(x: Tensor, p: float, train: bool | None) -> Outs:
    """The output in the iterator's layout, and the mask in the input's."""
    sure(x.dtype in FLOATS and train and 0 < p < 1 and numel(x.shape))
    return [result([x], x.dtype), (x.shape, preserved_strides(x), torch.bool)]


@register(KERNEL_RULES, "hardtanh _prelu_kernel")
def like_first(x: Tensor, *others: Operand) -> Out:
    """The result is created like the first operand (``empty_like``)."""
    sure(promoted([x, *(other for other in others if isinstance(other, Tensor))]) is x.dtype and x.dtype in FLOATS)
    return x.shape, preserved_strides(x), x.dtype


@register(KERNEL_RULES, "index_fill.int_Scalar index_fill.int_Tensor")
def filled(x: Tensor, dim: int, index: Tensor, value: Operand) -> Out:
    """A clone, which keeps the stride of an axis of one element; up to torch 2.11 the meta kernel does not."""
    sure(index.dtype is torch.int64 and index.dim() <= 1 and promoted((x, value)) is x.dtype)
    sure(-max(1, x.dim()) <= dim < max(1, x.dim()) and not (isinstance(value, Tensor) and value.dim()))
    return x.shape, preserved_strides(x), x.dtype


@register(CPU_RULES, "log_sigmoid_forward")
def log_sigmoid(x: Tensor) -> Outs:
    """The output and the kernel's buffer, both row-major."""
    sure(x.dtype in FLOATS)
    return [fresh(x.shape, x.dtype), fresh(x.shape, x.dtype)]


@register(KERNEL_RULES, "log_sigmoid_backward")
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Out:
    """The input's gradient, created like that of the output."""
    sure(grad.shape == x.shape and grad.dtype is x.dtype and x.dtype in FLOATS and numel(x.shape))
    return x.shape, preserved_strides(grad), x.dtype


@register(KERNEL_RULES, "masked_fill.Scalar masked_fill.Tensor")
def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Out:
    """The kernel clones its broadcast first operand in row-major order."""
    sure(mask.dtype is torch.bool and torch.can_cast(promoted((x, value)), x.dtype))
    sure(not (isinstance(value, Tensor) and value.dim()))
    shape, _, dtype = result([x, mask], x.dtype)
    return fresh(shape, dtype)


# Losses and softmax


@register(KERNEL_RULES, "mse_loss smooth_l1_loss")
def loss_per_element(x: Tensor, target: Tensor, reduction: int = 1, *_: float, **__: float) -> Out:
    """The loss per element, in the iterator's layout."""
    sure(reduction == 0)
    return _alike(x, target)


@register(KERNEL_RULES, "huber_loss")
def huber_loss_per_element(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Out:
    """The loss per element, in the input's layout."""
    sure(reduction == 0)
    shape, _, dtype = _alike(x, target)
    return shape, preserved_strides(x), dtype


@register(KERNEL_RULES, "binary_cross_entropy_with_logits")
def cross_entropy_per_element(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> Out:
    """The computation starts from one minus the target, whose layout it keeps."""
    sure(reduction == 0 and weight is pos_weight is None and x.shape == target.shape and x.dtype is target.dtype)
    sure(x.dtype in FLOATS and numel(x.shape))
    return x.shape, preserved_strides(target), x.dtype


@register(KERNEL_RULES, "_log_softmax_backward_data _softmax_backward_data")
def softmax_backward(grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Out:
    """The input's gradient, row-major."""
    sure(grad.shape == out.shape and grad.dtype is out.dtype is dtype and dtype in FLOATS and out.dim())
    return fresh(grad.shape, dtype)


@register(CPU_RULES, "_embedding_bag")
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, by_frequency: bool = False, mode: int = SUM, sparse: bool = False,
    weights: Tensor | None = None, has_last: bool = False, padding: int = -1,
) -> Outs:  # fmt: skip
    """The rows, each index's bag unless FBGEMM sums them, the bag sizes, and the indices of the maxima."""
    sure(weight.dim() == 2 and indices.dim() == 1 == offsets.dim())
    bags, width = offsets.shape[0] - int(has_last), weight.shape[1]
    places = 0 if mode == SUM and takes_fbgemm(weight, weights, padding) else indices.shape[0]
    greatest = (bags, width) if mode == MAX else (0,)
    sizes = [(places,), tuple(offsets.shape), greatest]
    return [fresh((bags, width), weight.dtype), *(fresh(size, indices.dtype) for size in sizes)]


# Images


@register(KERNEL_RULES, "pixel_unshuffle")
def pixel_unshuffle(x: Tensor, factor: int) -> Out:
    """Row-major: a contiguous clone on CUDA (``math_pixel_unshuffle`` in PixelShuffle.cpp)."""
    return fresh(gathered(x, factor), x.dtype)


@register(CPU_RULES, "pixel_unshuffle")
def pixel_unshuffle_on_cpu(x: Tensor, factor: int) -> Out:
    """The image with pixels gathered into channels, in its memory format."""
    sure(numel(x.shape))
    return in_format_of(x, gathered(x, factor), x.dtype)


@register(CPU_RULES, "pixel_shuffle")
def pixel_shuffle(x: Tensor, factor: int) -> Out:
    """The image with blocks of channels spread over height and width, in its memory format."""
    sure(x.dim() >= 3 and factor > 0 and numel(x.shape))
    *batch, channels, height, width = x.shape
    sure(channels % factor**2 == 0)
    return in_format_of(x, (*batch, channels // factor**2, height * factor, width * factor), x.dtype)


@register(CPU_RULES, "replication_pad1d replication_pad2d replication_pad3d")
def replication_pad(x: Tensor, padding: Sizes) -> Out:
    """The padded tensor of floats, in its memory format."""
    sure(x.dim() == len(padding) // 2 + 2 and x.dtype in FLOATS and numel(x.shape))
    return in_format_of(x, padded(x, padding), x.dtype)


@register(CPU_RULES, "reflection_pad1d reflection_pad2d reflection_pad3d")
def reflection_pad(x: Tensor, padding: Sizes) -> Out:
    """The padded tensor, in its memory format; the padding must be smaller than the axis."""
    check_reflected(x, padding)
    return replication_pad(x, padding)  # type: ignore[return-value]


@register(CPU_RULES, "channel_shuffle native_channel_shuffle")
def channel_shuffle_on_cpu(x: Tensor, groups: int) -> Out:
    """The tensor with its channels interleaved, in its memory format."""
    _check_groups(x, groups)
    return in_format_of(x, x.shape, x.dtype)


@register(KERNEL_RULES, "channel_shuffle native_channel_shuffle")
def channel_shuffle(x: Tensor, groups: int) -> Out:
    """Row-major (``math_channel_shuffle`` in ChanelShuffle.cpp)."""
    _check_groups(x, groups)
    return fresh(x.shape, x.dtype)


def _check_groups(x: Tensor, groups: int) -> None:
    sure(x.dim() >= 3 and groups > 0 and numel(x.shape) and x.shape[1] % groups == 0)


@register(CPU_RULES, "max_unpool2d")
def max_unpool(x: Tensor, indices: Tensor, size: Sizes) -> Out:
    """The image at the given size, in its memory format."""
    sure(x.dim() == 4 and x.shape == indices.shape and indices.dtype is torch.int64 and len(size) == 2)
    sure(numel(x.shape) and min(size) > 0)
    return in_format_of(x, (*x.shape[:2], *size), x.dtype)


@register(
    CPU_RULES,
    "replication_pad2d_backward replication_pad3d_backward reflection_pad2d_backward reflection_pad3d_backward",
)
def pad_backward(grad: Tensor, x: Tensor, padding: Sizes) -> Out:
    """The input's gradient, in the input's memory format."""
    sure(x.dim() == len(padding) // 2 + 2 and x.dtype is grad.dtype and x.dtype in FLOATS and numel(x.shape))
    sure(grad.shape == padded(x, padding))
    return in_format_of(x, x.shape, x.dtype)


@register(CPU_RULES, "roll")
def roll(x: Tensor, shifts: Sizes, dims: Sizes = ()) -> Out:
    """Two parts concatenated, axis by axis; channels-last if both parts are, which an empty part is not."""
    sure(x.dim() and numel(x.shape) and len(shifts) == (len(dims) or 1))
    sure(all(-x.dim() <= dim < x.dim() for dim in dims))
    cut = [bool(shift % x.shape[dim]) for shift, dim in zip(shifts, dims)]
    sure(x.dim() not in (4, 5) or not is_channels_last(x) or all(cut) or not any(cut))
    return in_format_of(x, x.shape, x.dtype) if dims and all(cut) else fresh(x.shape, x.dtype)


# Convolutions: Convolution.cpp, determine_backend_memory_format


@register(KERNEL_RULES, "convolution_backward")
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Sizes | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """Channels-last for volumes on the CPU only where oneDNN prefers it, on CUDA never without cuDNN."""
    sure(x.dtype is weight.dtype is grad.dtype)
    last = False
    if x.device.type == "cuda":
        steps, more = (each(values, x.dim() - 2) for values in (stride, output_padding))
        sure(x.dtype in FLOATS and not keeps_last_on_cuda(x.dtype, steps, more))
    else:
        sure(x.device.type == "cpu" and x.dim() == 5 and x.dtype in (torch.float32, torch.float64))
        last = is_channels_last(x) or is_channels_last(weight)
        last = last and takes_onednn(x, weight, stride, dilation, transposed, output_padding, groups)

    def like(tensor: Tensor) -> Out:
        """Return a new tensor of this shape and dtype in the chosen memory format."""
        return (tensor.shape, channels_last(tensor.shape), tensor.dtype) if last else fresh(tensor.shape, tensor.dtype)

    of_bias = fresh(grad.shape[1:2], grad.dtype)
    outs: Outs = [like(x), like(weight), of_bias]
    return only_wanted(outs, wanted)


# Sampling by cuDNN, which has no meta kernels: aten/src/ATen/native/cudnn/GridSampler.cpp


@register(KERNEL_RULES, "cudnn_grid_sampler")
def cudnn_grid_sampler(x: Tensor, grid: Tensor) -> Out:
    """The images sampled at the grid's points, row-major."""
    sure(x.dim() == grid.dim() == 4 and grid.shape[0] == x.shape[0] and grid.shape[3] == 2 and grid.dtype is x.dtype)
    return fresh((*x.shape[:2], *grid.shape[1:3]), x.dtype)


@register(KERNEL_RULES, "cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(x: Tensor, grid: Tensor, grad: Tensor) -> Outs:
    """The gradients of images and grid, row-major, both whichever is wanted."""
    sure(grad.shape == (*x.shape[:2], *grid.shape[1:3]))
    return [fresh(x.shape, x.dtype), fresh(grid.shape, grid.dtype)]
