"""Scratch memory of convolutions on the CPU: oneDNN's copies in layouts of its own, or ATen's patches in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import aten_conv
from . import onednn_conv as onednn
from .onednn import Conv, Plan
from .workspace_registry import Phase, scratch

SOURCE = (
    "oneDNN 3.12, init_conf of each kernel; ideep's conv.hpp and deconv.hpp; ATen's Convolution.cpp, mkldnn/Conv.cpp"
)

Phases = tuple[Phase, ...]


@scratch("cpu", "aten::convolution", source=SOURCE, band=0.01)
def _convolution(
    out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *rest: Any
) -> Phases:
    if not out.numel():
        return ()
    groups = rest[1]
    conv = described(x, weight, out, bias is not None, stride, padding, dilation, transposed, groups)
    if not _takes_onednn(x, weight, conv, transposed, rest[0]):
        return aten_conv.forward(conv, transposed, _copied(x) + _copied(weight))
    plan = (onednn.transposed_forward if transposed else onednn.forward)(conv)
    copies = sum(map(_copied, (x, weight)))
    return _shifted((*_written_first(plan, plan.written, conv.written),), copies)


@scratch("cpu", "aten::convolution_backward", source=SOURCE, band=0.01)
def _convolution_backward(
    out: Any, grad: Any, x: Any, weight: Any, _: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    *rest: Any
) -> Phases:  # fmt: skip
    if not grad.numel():
        return ()
    output_padding, groups, wanted = rest
    conv = described(x, weight, grad, wanted[2], stride, padding, dilation, transposed, groups)
    if not _takes_onednn(x, weight, conv, transposed, output_padding):
        return aten_conv.backward(conv, transposed, wanted, _copied(grad) + _copied(x))
    phases: Phases = ()
    results = 0
    if wanted[0]:
        plan = (onednn.transposed_data if transposed else onednn.backward_data)(conv)
        phases = _written_first(plan, plan.written, conv.read)
        results = 1
    if wanted[1] or wanted[2]:
        plan = (onednn.transposed_weights if transposed else onednn.backward_weights)(conv)
        sums = plan.weights + (conv.groups * conv.oc * conv.itemsize if wanted[2] else 0)
        both = plan.read + plan.written + sums + plan.scratch
        phases += (Phase(results, both), Phase(results + wanted[1] + wanted[2], sums))
    return _shifted(phases, sum(map(_copied, (grad, x, weight))))


def _written_first(plan: Plan, written: int, plain: int) -> Phases:
    """The kernel runs; then what it wrote is put into the tensor's own layout."""
    left = written + plain if plan.channels_last else written
    return Phase(0, plan.read + plan.weights + written + plan.scratch), Phase(1, left)


def _shifted(phases: Phases, nbytes: int) -> Phases:
    """The phases with so many bytes more in each."""
    return tuple(Phase(phase.results, phase.nbytes + nbytes) for phase in phases)


def _copied(tensor: Any) -> int:
    """The bytes of a contiguous copy, where a tensor is not contiguous."""
    return 0 if tensor.is_contiguous() else tensor.numel() * tensor.element_size()


def described(
    x: Any, weight: Any, y: Any, bias: bool, stride: Any, padding: Any, dilation: Any, transposed: bool, groups: int
) -> Conv:
    """The convolution as oneDNN is asked for it: one axis becomes two, of which the first is 1."""
    outer = 1 if transposed else 0
    oc, ic = weight.shape[outer], weight.shape[1 - outer]
    oc, ic = (oc, ic // groups) if transposed else (oc // groups, ic)

    def axes(sizes: Sequence[int], missing: int) -> tuple[int, ...]:
        return (missing, *sizes) if len(sizes) == 1 else tuple(sizes)

    return Conv(
        batch=x.shape[0], groups=groups, ic=ic, oc=oc,
        inp=axes(x.shape[2:], 1), out=axes(y.shape[2:], 1), kernel=axes(weight.shape[2:], 1),
        stride=axes(stride, 1), padding=axes(padding, 0), dilation=axes(dilation, 1),
        bias=bias, itemsize=x.element_size(),
    )  # fmt: skip


def _takes_onednn(x: Any, weight: Any, conv: Conv, transposed: bool, output_padding: Sequence[int]) -> bool:
    """``ConvParams::use_mkldnn``: always but for what is small, or 1x1 on a single thread."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if transposed and any(pad >= step for pad, step in zip(output_padding, conv.stride[-len(output_padding) :])):
        return False
    if x.dtype is not torch.float32:
        return False
    large = conv.batch > 1 or conv.groups > 1 or x.numel() > 20480 or min(conv.kernel[-2:]) > 3
    pointwise = conv.kernel[-2:] == (1, 1) and not conv.is_strided and not conv.is_dilated
    return large and (not pointwise or conv.batch >= 16 or torch.get_num_threads() > 1)
