"""oneDNN on this machine: its register widths, how it describes a convolution, and how it sums up scratch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch

from .....data.rounding import round_up
from ....processor import has_avx512

PAGE = 4096
CACHE_LINES = 128
"""Default alignment of a piece of scratch (``memory_tracking.hpp``)."""
BATCH_ELEMENT = 40
"""Bytes of ``brgemm_batch_element_t``."""
FLOAT = 4
"""Bytes of the float32 in which half-precision kernels sum."""


def lanes() -> tuple[int, ...]:
    """Return the float32 elements per register, widest instruction set first, in the order oneDNN tries them."""
    return (16, 8) if has_avx512() else (8,)


def threads() -> int:
    """Return torch's number of threads."""
    return torch.get_num_threads()


def aligned(nbytes: int, align: int = CACHE_LINES) -> int:
    """Return the bytes of a piece of scratch plus room to align it (``registry_t::book``); 0 if empty."""
    return nbytes + max(align, CACHE_LINES) if nbytes else 0


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution: channels are per group, dilation 1 means none, ``padding`` is in front of each axis."""

    batch: int
    groups: int
    ic: int
    oc: int
    inp: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    bias: bool
    itemsize: int

    @property
    def reach(self) -> tuple[int, ...]:
        """The kernel's extent on each axis, with dilation."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def ends(self) -> tuple[int, ...]:
        """The padding at the end of each axis; negative if the last elements are never read."""
        return tuple(
            (o - 1) * s + r - i - p for o, s, r, i, p in zip(self.out, self.stride, self.reach, self.inp, self.padding)
        )

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one input and one output channel."""
        return self.groups > 1 and self.ic == self.oc == 1

    @property
    def is_strided(self) -> bool:
        """Whether any stride is not 1."""
        return any(s != 1 for s in self.stride)

    @property
    def is_dilated(self) -> bool:
        """Whether any dilation is not 1."""
        return any(d != 1 for d in self.dilation)

    @property
    def read(self) -> int:
        """Bytes of the input in its own layout."""
        return self.read_in(1)

    @property
    def written(self) -> int:
        """Bytes of the output in its own layout."""
        return self.written_in(1)

    @property
    def weights(self) -> int:
        """Bytes of the weights in their own layout."""
        return self.weights_in(1, 1)

    def read_in(self, block: int) -> int:
        """Return the bytes of the input with its channels in whole blocks."""
        return self.itemsize * self.batch * round_up(self.groups * self.ic, block) * prod(self.inp)

    def written_in(self, block: int) -> int:
        """Return the bytes of the output with its channels in whole blocks."""
        return self.itemsize * self.batch * round_up(self.groups * self.oc, block) * prod(self.out)

    def weights_in(self, oc_block: int, ic_block: int) -> int:
        """Return the bytes of the weights with their channels in whole blocks."""
        return (
            self.itemsize * self.groups * round_up(self.oc, oc_block) * round_up(self.ic, ic_block) * prod(self.kernel)
        )

    def depthwise_in(self, block: int) -> int:
        """Return the bytes of depthwise weights with the groups in whole blocks."""
        return self.itemsize * round_up(self.groups, block) * prod(self.kernel)

    @property
    def mirrored(self) -> Conv:
        """The convolution whose backward this transposed one is, with input and output exchanged."""
        return replace(self, ic=self.oc, oc=self.ic, inp=self.out, out=self.inp)


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes that a primitive allocates: reordered copies of what it reads, of the weights, of its result; scratch.

    0 means no copy: the tensor is used in place. In the backward, ``read`` is the output's gradient and ``written`` the
    input's; for the weight's gradient both are read.
    """

    read: int
    weights: int
    written: int
    scratch: int = 0
    channels_last: bool = False
    guess: int = 0
    """Bytes by which the plan may be off, where the kernel depends on oneDNN's model of the CPU's caches."""


def channels_last_plan(conv: Conv, weights: int, scratch: int = 0) -> Plan:
    """Return a plan with channels-last activations: for one channel or one pixel, the layout they already have."""
    read = conv.read if conv.groups * conv.ic > 1 and prod(conv.inp) > 1 else 0
    is_turned = conv.groups * conv.oc > 1 and prod(conv.out) > 1
    return Plan(read, weights, conv.written, scratch, channels_last=is_turned)


def batch_elements(pairs: int) -> int:
    """Return the bytes of descriptors of pairs of small matrices to be summed, in whole pages per thread."""
    elements = round_up(pairs * BATCH_ELEMENT, PAGE)
    return aligned(threads() * round_up(elements, BATCH_ELEMENT), PAGE)
