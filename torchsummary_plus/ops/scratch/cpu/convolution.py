"""Scratch memory of convolutions on the CPU: oneDNN's reordered copies, or ATen's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ....live.versions import since
from ...conv_backend import takes_onednn
from ...processor import has_avx512, is_half
from ..registry import AtMost, Phase, reserve, scratch
from ..sizes import copied as contiguous_copy
from ..sizes import suggested
from ..strided import Strided, copied, strided
from . import aten_convolution as aten_conv
from .aten_convolution import Convolution, with_bytes
from .onednn import channels_last as onednn_last
from .onednn import convolution as onednn_conv
from .onednn.description import Conv, Plan, lanes
from .onednn.half import bias_sum, uncertain
from .onednn.inner_product import inner_product, is_inner_product
from .onednn.lowered import is_lowered

SOURCE = (
    "oneDNN 3.12, init_conf of each kernel; ideep's conv.hpp and deconv.hpp; ATen's Convolution.cpp, mkldnn/Conv.cpp"
)

Phases = tuple[Phase, ...]

PLANS: dict[tuple[bool, bool], tuple[Callable[[Conv], Plan], ...]] = {
    (False, False): (onednn_conv.forward_plan, onednn_conv.backward_data, onednn_conv.backward_weights),
    (False, True): (onednn_conv.transposed_forward, onednn_conv.transposed_data, onednn_conv.transposed_weights),
    (True, False): (onednn_last.forward_plan, onednn_last.backward_data, onednn_last.backward_weights),
    (True, True): (onednn_last.transposed_forward, onednn_last.transposed_data, onednn_last.transposed_weights),
}
"""(channels-last, transposed) -> the plans of the forward, the input's gradient and the weight's gradient."""


@scratch("cpu", "aten::convolution", "aten::_convolution", source=SOURCE, band=0.0)
def _convolution(
    out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *rest: Any
) -> Phases | AtMost:
    if not out.numel():
        return ()
    conv = described(x, weight, out, bias is not None, stride, padding, dilation, transposed, rest[1])
    call, copy = called(conv, transposed, x, weight)
    by_onednn = takes_onednn(x, weight, stride, dilation, transposed, rest[0], rest[1])
    copy += contiguous_copy(bias) if by_onednn or transposed else 0
    if not by_onednn:
        return with_bytes(copy, aten_conv.forward_phases(call))
    last = _goes_last(call)
    copies = copy + _copied(call.x, last) + _copied(call.weight, last)
    plan = _planned(call, last, 0)
    phases = _guessed(with_bytes(copies, _written(plan, conv.written)), plan.guess)
    return uncertain(conv, phases) if is_half(x.dtype) else phases


@reserve("cpu", "aten::convolution", "aten::_convolution", source=SOURCE, band=0.0)
def _convolution_storage(
    out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *rest: Any
) -> tuple[int | None, ...]:
    if not out.numel() or not transposed or x.dim() != 5:
        return (None,)
    conv = described(x, weight, out, bias is not None, stride, padding, dilation, transposed, rest[1])
    if takes_onednn(x, weight, stride, dilation, transposed, rest[0], rest[1]):
        return (None,)
    return (called(conv, transposed, x, weight)[0].storage,)


@scratch("cpu", "aten::convolution_backward", source=SOURCE, band=0.0)
def _convolution_backward(
    out: Any, grad: Any, x: Any, weight: Any, _: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    *rest: Any
) -> Phases | AtMost:  # fmt: skip
    if not grad.numel():
        return ()
    output_padding, groups, wanted = rest
    conv = described(x, weight, grad, wanted[2], stride, padding, dilation, transposed, groups)
    call, copy = called(conv, transposed, x, weight)
    if not takes_onednn(x, weight, stride, dilation, transposed, output_padding, groups):
        return _aten_backward(call, copy, grad, wanted)
    last = _goes_last(call)
    copies = copy + sum(_copied(tensor, last) for tensor in (call.x, call.weight, strided(grad)))
    phases: Phases = ()
    if wanted[0]:
        plan = _planned(call, last, 1)
        phases += _guessed(with_bytes(copies, _written(plan, conv.read)), plan.guess)
    if wanted[1] or wanted[2]:
        plan = _planned(call, last, 2)
        phases += _guessed(with_bytes(copies, _weights_gradient(plan, conv, int(wanted[0]), wanted)), plan.guess)
    return uncertain(conv, phases) if is_half(x.dtype) else phases


def _aten_backward(call: Convolution, copy: int, grad: Any, wanted: Sequence[bool]) -> Phases:
    """Return the phases of ATen's own kernel, beside ``copy`` bytes."""
    wants, groups = (wanted[0], wanted[1], wanted[2]), call.conv.groups
    if groups == 1 or call.is_deep:
        whole = replace(call.conv, groups=1, oc=call.conv.oc * groups)
        sums = bias_sum(whole, call.transposed, grad, wants, 0 if call.is_plain else call.columns)
        return sums + with_bytes(copy, aten_conv.backward(call, strided(grad), wants))
    group = call.one_group
    columns = 0 if group.is_plain else group.columns
    sums = bias_sum(group.conv, call.transposed, _of_one_group(grad, groups), wants, columns)
    return with_bytes(copy, aten_conv.backward(call, strided(grad), wants, sums))


def _of_one_group(grad: Any, groups: int) -> torch.Tensor:
    """Return the contiguous gradient of one group's results, on ``meta``."""
    shape = (grad.shape[0], grad.shape[1] // groups, *grad.shape[2:])
    return torch.empty(shape, dtype=grad.dtype, device="meta").to(memory_format=suggested(grad))


def _planned(call: Convolution, last: bool, part: int) -> Plan:
    plan = PLANS[last, call.transposed][part](call.conv)
    if last and call.conv.groups > 1 and not has_avx512() and not since("2.8"):  # oneDNN 3.4 and 3.5 used less.
        plan = replace(plan, guess=max(plan.guess, plan.scratch))
    if last and _is_unusual(call):
        plan = replace(plan, guess=max(plan.guess, plan.scratch + plan.weights))
    mirrored = call.conv.mirrored if call.transposed else call.conv
    if is_inner_product(mirrored):
        if not call.transposed:
            return inner_product(mirrored, last, part)
        return onednn_conv.nested(inner_product(mirrored, last, (1, 0, 2)[part]))
    return onednn_last.any_kernel(call.conv, plan) if last else plan


def _is_unusual(call: Convolution) -> bool:
    """Whether some outputs see only padding, or a transposed stride leaves gaps: oneDNN has more kernels for these."""
    gaps = call.transposed and any(step > reach for step, reach in zip(call.conv.stride, call.conv.reach))
    return gaps or onednn_conv.is_outside(call.conv)


def writes_astray(
    is_forward: bool, y: Any, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    groups: int,
) -> bool:  # fmt: skip
    """Whether oneDNN 3.12 may write past its scratch memory, which aborts the process: do not try such a kernel.

    Seen on AVX-512 where it reorders the rows of a single channels-last channel and the stride skips some of them.
    """
    conv = described(x, weight, y, False, stride, padding, dilation, transposed, groups)
    call, _ = called(conv, transposed, x, weight)
    skips = any(step > reach for step, reach in zip(conv.stride, conv.reach))
    forward = conv.mirrored if transposed else conv
    is_copied = is_lowered(forward, lanes()[0])
    return is_forward is not transposed and skips and is_copied and _goes_last(call)


def _guessed(phases: Phases, guess: int) -> Phases:
    """Mark the phases as a guess that may be off by ``guess`` bytes."""
    return tuple(phase._replace(band=guess / max(1, phase.nbytes)) for phase in phases) if guess else phases


def called(conv: Conv, transposed: bool, x: Any, weight: Any) -> tuple[Convolution, int]:
    """Return the tensors as the kernels see them, and the bytes of the copy that makes a 1-d input contiguous."""
    before = strided(x)
    after = before.contiguous() if x.dim() == 3 else before
    return Convolution(conv, transposed, after, strided(weight)), copied(before, after)


def _goes_last(call: Convolution) -> bool:
    """Whether oneDNN gets channels-last tensors (``mkldnn_conv_use_channels_last``)."""
    return call.x.suggests_last or call.weight.suggests_last


def _copied(tensor: Strided, last: bool) -> int:
    return copied(tensor, tensor.contiguous(last))


def _written(plan: Plan, plain: int) -> Phases:
    """Run the kernel, then reorder its output to the tensor's own layout."""
    if not plan.written:
        return (Phase(1, plan.weights + plan.scratch),)
    left = plan.written + plain if plan.channels_last else plan.written
    return Phase(0, plan.read + plan.weights + plan.written + plan.scratch), Phase(1, left)


def _weights_gradient(plan: Plan, conv: Conv, before: int, wanted: Sequence[bool]) -> Phases:
    """Compute the gradients of weight and bias; the weight's is reordered to its own layout via the default one."""
    sums = plan.weights + (conv.groups * conv.oc * conv.itemsize if wanted[2] else 0)
    both = plan.read + plan.written + sums + plan.scratch
    plain = conv.weights * (plan.channels_last + (not wanted[1]))
    return Phase(before, both), Phase(before + wanted[1] + wanted[2], sums + plain)


def described(
    x: Any, weight: Any, y: Any, bias: bool, stride: Any, padding: Any, dilation: Any, transposed: bool, groups: int
) -> Conv:
    """Describe the convolution as oneDNN sees it: a 1-d convolution becomes 2-d with a first axis of 1."""
    outer = 1 if transposed else 0
    oc, ic = weight.shape[outer], weight.shape[1 - outer]
    oc, ic = (oc, ic // groups) if transposed else (oc // groups, ic)

    def axes(sizes: Sequence[int], missing: int) -> tuple[int, ...]:
        """Return the sizes, with ``missing`` in front for a 1-d convolution."""
        return (missing, *sizes) if len(sizes) == 1 else tuple(sizes)

    return Conv(
        batch=x.shape[0], groups=groups, ic=ic, oc=oc,
        inp=axes(x.shape[2:], 1), out=axes(y.shape[2:], 1), kernel=axes(weight.shape[2:], 1),
        stride=axes(stride, 1), padding=axes(padding, 0), dilation=axes(dilation, 1),
        bias=bias, itemsize=x.element_size(),
    )  # fmt: skip
