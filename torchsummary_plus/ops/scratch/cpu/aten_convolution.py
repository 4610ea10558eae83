"""Scratch memory of ATen's own CPU convolutions, which unfold the input into columns (im2col).

ATen/native: Convolution.cpp, which runs groups one after another, ConvolutionMM2d.cpp, ConvolutionMM3d.cpp,
NaiveDilatedConvolution.cpp, NaiveConvolutionTranspose2d.cpp and NaiveConvolutionTranspose3d.cpp. The columns for the
input gradient of a 2-d convolution come from ``new``, not from torch's allocator, so no profiler sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ..registry import Phase
from ..strided import Strided, copied, laid_out
from .onednn.description import Conv
from .reductions import thread_sums

Phases = tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution and its tensors."""

    conv: Conv
    transposed: bool
    x: Strided
    weight: Strided

    @property
    def is_deep(self) -> bool:
        """Whether the kernel is ``slow_conv3d``, which runs all groups at once and supports one memory format."""
        return len(self.conv.inp) == 3 and not self.transposed and not self.conv.is_dilated

    @property
    def goes_last(self) -> bool:
        """Whether the 2-d kernels run in channels-last (``thnn_conv_use_channels_last``)."""
        return len(self.conv.inp) == 2 and (self.x.suggests_last or self.weight.suggests_last)

    @property
    def contiguous(self) -> Convolution:
        """Return the call with contiguous copies of the tensors in another memory format."""
        last = self.goes_last
        return replace(self, x=self.x.contiguous(last), weight=self.weight.contiguous(last))

    def copies_for(self, other: Convolution) -> int:
        """Return the bytes of the tensors that ``other`` holds as copies."""
        return copied(self.x, other.x) + copied(self.weight, other.weight)

    @property
    def one_group(self) -> Convolution:
        """Return the call for the first group (``subtensor``)."""
        groups = self.conv.groups
        x = self.x.part(1, groups).contiguous(self.x.suggests_last)
        return replace(self, conv=replace(self.conv, groups=1), x=x, weight=self.weight.part(0, groups))

    @property
    def storage(self) -> int:
        """Return the bytes of the result's storage; a transposed 3-d convolution first allocates its input's size."""
        conv = self.conv
        is_resized = self.transposed and len(conv.inp) == 3 and conv.groups == 1
        return max(conv.read, conv.written) if is_resized else conv.written

    @property
    def is_plain(self) -> bool:
        """Whether the kernel is 1x1 without stride or padding, so that the input already is its matrix of columns."""
        conv = self.conv
        is_moved = conv.is_strided or conv.is_dilated or any(conv.padding)
        return prod(conv.kernel) == conv.groups == 1 and not is_moved

    @property
    def columns(self) -> int:
        """Return the bytes of one image's columns; a transposed convolution adds them up."""
        conv = self.conv
        channels, size = (conv.oc, conv.inp) if self.transposed else (conv.groups * conv.ic, conv.out)
        return conv.itemsize * channels * prod(conv.kernel) * prod(size)


def forward_phases(call: Convolution) -> Phases:
    """Return the phases of the forward."""
    ready = call.contiguous
    copies = call.copies_for(ready)
    if call.is_deep:
        return (Phase(1, copies + (0 if call.is_plain else call.conv.batch * call.columns)),)
    if call.conv.groups == 1:
        return with_bytes(copies, _forward_alone(ready))
    group, groups = ready.one_group, call.conv.groups
    before = copies + copied(ready.x.part(1, groups), group.x) + (groups - 1) * group.storage
    parts = (Phase(0, before + phase.results * group.storage + phase.nbytes) for phase in _forward_alone(group))
    return (*parts, Phase(1, copies + groups * group.storage))


def _forward_alone(call: Convolution) -> Phases:
    """Return the phases for one group; each kernel again makes its tensors contiguous in their suggested format."""
    conv, copies = call.conv, call.copies_for(call.contiguous)
    if not call.transposed:
        images = 1 if conv.is_dilated else 0 if call.is_plain else conv.batch
        return (Phase(1, copies + images * call.columns),)
    if len(conv.inp) == 2:
        return (Phase(1, copies + conv.batch * call.columns),)
    before = conv.read if conv.written > conv.read else 0
    ones = conv.itemsize * prod(conv.out) if conv.bias else 0
    return Phase(1, copies + before), Phase(1, copies + call.columns + ones)


def backward(call: Convolution, grad: Strided, wanted: tuple[bool, bool, bool], sums: Phases = ()) -> Phases:
    """Return the phases of the backward: the input's gradient, then those of bias and weight, as far as ``wanted``.

    ``sums`` are the phases in which the bias's gradient of one of several groups is summed.
    """
    if call.is_deep:
        return _backward_deep(call, grad, wanted)
    ready = call.contiguous
    copies = call.copies_for(ready)
    if call.conv.groups == 1:
        return with_bytes(copies, _backward_alone(ready, grad, wanted))
    group, groups = ready.one_group, call.conv.groups
    part = grad.part(1, groups)
    one_grad = part.contiguous(grad.suggests_last)
    sizes = (group.conv.read, group.conv.weights, group.conv.oc * group.conv.itemsize)
    results = [size for size, is_wanted in zip(sizes, wanted) if is_wanted]
    before = copies + copied(part, one_grad) + copied(ready.x.part(1, groups), group.x) + (groups - 1) * sum(results)
    inner = (*sums, *_backward_alone(group, one_grad, wanted))
    parts = (Phase(0, before + sum(results[: phase.results]) + phase.nbytes) for phase in inner)
    return (*parts, Phase(len(results), copies + groups * sum(results)))


def _backward_deep(call: Convolution, grad: Strided, wanted: tuple[bool, bool, bool]) -> Phases:
    every = call.conv.batch * call.columns
    ready, grad_copy = call.contiguous, copied(grad, grad.contiguous())
    weight_copy, x_copy = copied(call.weight, ready.weight), copied(call.x, ready.x)
    for_data = (Phase(1, grad_copy + weight_copy + every),) if wanted[0] else ()
    for_weights = grad_copy + x_copy + (0 if call.is_plain else every)
    return (*for_data, Phase(sum(wanted), for_weights if wanted[1] else 0))


def _backward_alone(call: Convolution, grad: Strided, wanted: tuple[bool, bool, bool]) -> Phases:
    conv, results = call.conv, sum(wanted)
    copies = call.copies_for(call.contiguous) + copied(grad, grad.contiguous(call.goes_last))
    if not call.transposed and conv.is_dilated:
        sums = conv.oc * conv.itemsize if wanted[2] else 0
        columns = call.columns if wanted[0] or wanted[1] else 0
        return (Phase(results, copies + sums + columns),)
    columns = 0 if call.is_plain else call.columns
    for_data = columns if call.transposed else 0
    phases: Phases = (Phase(1, copies + for_data),) if wanted[0] else ()
    sums_up = wanted[2] and call.transposed and len(conv.inp) == 3
    if not wanted[1] and not sums_up:
        return (*phases, Phase(results, 0))
    if call.transposed:
        return (*phases, Phase(results, copies + columns + (_partial_sums(conv) if sums_up else 0)))
    new_weight = laid_out(call.weight, call.weight.suggests_last)
    last = len(conv.inp) == 2 and (call.x.suggests_last or new_weight.suggests_last)
    grad_copy = copied(grad, grad.contiguous(last))
    return (*phases, Phase(results, grad_copy + conv.batch * columns))


def _partial_sums(conv: Conv) -> int:
    """Return the bytes of the threads' sums of a single channel's gradient, which is that of the bias."""
    is_alone = conv.groups * conv.oc == 1
    return thread_sums(conv.written // conv.itemsize, conv.itemsize) if is_alone else 0


def with_bytes(nbytes: int, phases: Phases) -> Phases:
    """Return the phases with ``nbytes`` more in each."""
    return tuple(Phase(phase.results, phase.nbytes + nbytes) for phase in phases)
