"""oneDNN as it stands on this machine, the words it describes a convolution with, and how it adds scratch up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch

from ....processor import has_avx512

PAGE = 4096
CACHE_LINES = 128
"""What oneDNN aligns a piece of scratch to where nothing else is said (``memory_tracking.hpp``)."""


def lanes() -> tuple[int, ...]:
    """Float32 numbers in a register, of the widest instruction set first: oneDNN tries one after another."""
    return (16, 8) if has_avx512() else (8,)


def threads() -> int:
    return torch.get_num_threads()


def up(size: int, block: int) -> int:
    """``size`` rounded up to whole blocks."""
    return -(-size // block) * block


def ceil_div(size: int, block: int) -> int:
    return -(-size // block)


def booked(nbytes: int, align: int = CACHE_LINES) -> int:
    """A piece of scratch with the room to align it (``registry_t::book``); 0 where it is empty."""
    return nbytes + max(align, CACHE_LINES) if nbytes else 0


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution: channels are those of one group, dilation 1 is none, ``padding`` stands before each axis."""

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
        """What the kernel spans on each axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def ends(self) -> tuple[int, ...]:
        """The padding behind each axis; negative where the last elements are never read."""
        return tuple(
            (o - 1) * s + r - i - p for o, s, r, i, p in zip(self.out, self.stride, self.reach, self.inp, self.padding)
        )

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.ic == self.oc == 1

    @property
    def is_strided(self) -> bool:
        return any(s != 1 for s in self.stride)

    @property
    def is_dilated(self) -> bool:
        return any(d != 1 for d in self.dilation)

    @property
    def read(self) -> int:
        """Bytes of the input as it stands."""
        return self.read_in(1)

    @property
    def written(self) -> int:
        """Bytes of the output as it stands."""
        return self.written_in(1)

    @property
    def weights(self) -> int:
        """Bytes of the weights as they stand."""
        return self.weights_in(1, 1)

    def read_in(self, block: int) -> int:
        """Bytes of the input with its channels in whole blocks."""
        return self.itemsize * self.batch * up(self.groups * self.ic, block) * prod(self.inp)

    def written_in(self, block: int) -> int:
        return self.itemsize * self.batch * up(self.groups * self.oc, block) * prod(self.out)

    def weights_in(self, oc_block: int, ic_block: int) -> int:
        return self.itemsize * self.groups * up(self.oc, oc_block) * up(self.ic, ic_block) * prod(self.kernel)

    def depthwise_in(self, block: int) -> int:
        """Bytes of the weights of a depthwise convolution with its groups in whole blocks."""
        return self.itemsize * up(self.groups, block) * prod(self.kernel)

    @property
    def mirrored(self) -> Conv:
        """The convolution whose backward this transposed one is: what it reads and what it writes change places."""
        return replace(self, ic=self.oc, oc=self.ic, inp=self.out, out=self.inp)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a primitive takes: bytes of its own copies of what is read, of the weights, of what is written; scratch.

    A copy of 0 bytes is none: the primitive reads what is there. In the backward ``read`` is the output's gradient and
    ``written`` that of the input; for the gradient of the weights both are read.
    """

    read: int
    weights: int
    written: int
    scratch: int = 0
    channels_last: bool = False
    guess: int = 0
    """Bytes by which it may be off, where which kernel oneDNN takes depends on its model of the processor's caches."""
