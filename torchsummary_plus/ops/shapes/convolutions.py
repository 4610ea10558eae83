"""Rules for convolutions and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..backends import keeps_last, keeps_last_on_cuda, takes_onednn
from ..strides import contiguous
from .registry import (
    Out,
    Outs,
    Sizes,
    channels_last,
    each,
    floats_of,
    fresh,
    is_channels_last,
    is_contiguous,
    numel,
    only_wanted,
    rule,
    sure,
)


@rule("convolution", "_convolution")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    *_: bool,
) -> Out:
    """A convolution or transposed convolution of 1 to 3 spatial axes, in the kernels' memory format."""
    axes = x.dim() - 2
    sure(axes in (1, 2, 3) and weight.dim() == x.dim() and numel(x.shape) and numel(weight.shape))
    entering, channels = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        entering, channels = channels, entering
    sure(x.shape[1] == entering and groups > 0 and weight.shape[0] % groups == 0)
    sure(bias is None or bias.shape == (channels,))
    settings = [each(values, axes) for values in (stride, padding, dilation, output_padding)]
    sizes = []
    for size, kernel, step, pad, gap, extra in zip(x.shape[2:], weight.shape[2:], *settings):
        sure(step > 0 and gap > 0 and pad >= 0)
        reach = gap * (kernel - 1) + 1
        if transposed:
            sure(0 <= extra < max(step, gap))
            sizes.append((size - 1) * step - 2 * pad + reach + extra)
        else:
            sizes.append((size + 2 * pad - reach) // step + 1)
    sure(min(sizes) > 0)
    shape, dtype = (x.shape[0], channels, *sizes), floats_of(x, weight, bias)
    if axes == 1:
        sure(weight.stride() == contiguous(weight.shape))
        return fresh(shape, dtype)
    if not (is_channels_last(x) or is_channels_last(weight)):
        return fresh(shape, dtype)
    stays = _stays_last(x, weight, settings, transposed, groups)
    return (shape, channels_last(shape), dtype) if stays else fresh(shape, dtype)


def _stays_last(x: Tensor, weight: Tensor, settings: list[Sizes], transposed: bool, groups: int) -> bool:
    """Whether the result is channels-last: if the input's or the weight's strides are, with oneDNN as with cuDNN.

    This rule follows the kernels, not the meta kernel, which ignores the layout in recent releases.
    """
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        stride, _, dilation, output_padding = settings
        return keeps_last(x, weight, stride, dilation, transposed, output_padding, groups)
    if x.device.type == "cuda":
        return keeps_last_on_cuda(x.dtype, settings[0], settings[3])
    sure(x.dtype is not torch.float64 and (x.dim() == 4 or groups == 1))
    return True


@rule("convolution_backward")
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Sizes | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int, wanted: Sequence[bool],
) -> Outs:  # fmt: skip
    """The wanted gradients of input, weight and bias.

    Row-major ones unless a tensor is channels-last; then channels-last by cuDNN and for volumes that oneDNN prefers so,
    always row-major on CUDA without cuDNN, and no rule otherwise.
    """
    axes, dtype = x.dim() - 2, floats_of(grad, x, weight)
    sure(axes in (1, 2, 3) and weight.dim() == x.dim() and numel(x.shape) and numel(weight.shape))
    sure(bias is not None or not wanted[2])
    settings = [each(values, axes) for values in (stride, dilation, output_padding)]
    if x.device.type == "cuda":
        last = is_channels_last(x) or is_channels_last(weight)
        last = last and keeps_last_on_cuda(x.dtype, settings[0], settings[2])
    elif axes == 3 and dtype in (torch.float32, torch.float64):
        last = is_channels_last(x) or is_channels_last(weight)
        last = last and takes_onednn(x, weight, settings[0], settings[1], transposed, settings[2], groups)
    else:
        sure(_are_rows(x, weight))
        last = False

    def like(tensor: Tensor) -> Out:
        """Return a new tensor of this shape and dtype in the chosen memory format."""
        return (tensor.shape, channels_last(tensor.shape), dtype) if last else fresh(tensor.shape, dtype)

    return only_wanted([like(x), like(weight), fresh(grad.shape[1:2], dtype)], wanted)


def _are_rows(*tensors: Tensor) -> bool:
    return all(is_contiguous(tensor) and not is_channels_last(tensor) for tensor in tensors)
