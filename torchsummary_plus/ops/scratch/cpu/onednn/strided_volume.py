"""A strided convolution with three axes, and the blocks in which oneDNN computes its input's gradient."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .....data.rounding import round_up
from .description import Conv


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of the result and of the kernel; ``row`` is the width of the result computed at once."""

    columns: int
    kernel: tuple[int, int, int]
    depth: int
    height: int
    row: int


@dataclass(frozen=True, slots=True)
class Volume:
    """A convolution with three axes; ``padded`` are the sizes of the output's gradient with its padding."""

    conv: Conv
    wide: int
    inp: tuple[int, int, int]
    out: tuple[int, int, int]
    kernel: tuple[int, int, int]
    stride: tuple[int, int, int]
    padded: tuple[int, int, int]

    @property
    def across(self) -> int:
        """The stride along the width."""
        return self.stride[2]

    @property
    def is_uneven(self) -> bool:
        """Whether the stride leaves a rest of the width (``has_uneven_iw``)."""
        return self.inp[2] % self.across != 0

    @property
    def width(self) -> int:
        """The width of the result in whole strides (``sp``)."""
        return round_up(self.inp[2], self.across)

    @property
    def is_one(self) -> bool:
        """Whether the kernel has one element and no padding (``is_1x1``)."""
        return prod(self.kernel) == 1 and not any(self.conv.padding)

    @property
    def is_outermost(self) -> bool:
        """Whether blocks of channels are the outer loop (``loop_ngcdhw``), else images are (``loop_ndhwgc``)."""
        return prod(self.out) < self.conv.ic * prod(self.kernel) and not self.is_uneven


def volume(conv: Conv, wide: int) -> Volume:
    """Describe a convolution with three axes, of which missing ones have the size 1."""
    missing = (1,) * (3 - len(conv.inp))
    before = [max(0, r - 1 - p) // s for r, p, s in zip(conv.reach, conv.padding, conv.stride)]
    behind = [max(0, r - 1 - e) // s for r, e, s in zip(conv.reach, conv.ends, conv.stride)]
    padded = tuple(o + b + e for o, b, e in zip(conv.out, before, behind))
    sizes = (conv.inp, conv.out, conv.kernel, conv.stride, padded)
    return Volume(conv, wide, *((*missing, *size) for size in sizes))  # type: ignore[arg-type]
