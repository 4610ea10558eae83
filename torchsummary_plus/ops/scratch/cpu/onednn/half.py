"""Half-precision convolutions, whose kernels differ per instruction set: about float32's memory, within a bound.

oneDNN 3.12: cpu_convolution_list.cpp (``jit_avx512_core_bf16_*``, ``brgemm_*``, ``jit_avx512_core_amx_*``). All use
blocks of 16 channels, like float32 kernels on AVX-512; their own scratch is tiles and, for the weight's gradient,
float32 sums and transposed images per thread.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from ....processor import is_half
from ....strides import contiguous
from ...registry import AtMost, Phase
from ...sizes import copied
from ..reductions import axes_apart
from .description import FLOAT, Conv, threads

WIDE = 16
TILES = 128 * 1024
"""Most bytes of a thread's tiles, tables and pages; up to 62 KiB were measured."""


def uncertain(conv: Conv, phases: tuple[Phase, ...]) -> AtMost:
    """Return the bound for phases that may need nothing, with the most that may be added to them."""
    known = tuple(phase._replace(band=1.0) for phase in phases)
    images = conv.read_in(WIDE) + conv.written_in(WIDE)
    wide = replace(conv, itemsize=FLOAT)
    sums = wide.weights_in(WIDE, WIDE)
    columns = FLOAT * conv.groups * max(conv.ic, conv.oc) * prod(conv.kernel) * max(prod(conv.inp), prod(conv.out))
    return AtMost(2 * images + 2 * sums + threads() * (sums + columns + TILES), known)


def bias_sum(
    conv: Conv, transposed: bool, grad: Any, wanted: tuple[bool, bool, bool], columns: int
) -> tuple[Phase, ...]:
    """Return the float32 sum of ATen's own half-precision bias gradient, computed before the weight's gradient.

    Not for dilated kernels, which sum image by image. Transposed convolutions of volumes sum a contiguous gradient,
    beside an image's ``columns``. Source: ConvolutionMM2d.cpp, ConvolutionMM3d.cpp,
    NaiveConvolutionTranspose2d.cpp and 3d.cpp.
    """
    if not wanted[2] or not is_half(grad.dtype) or (conv.is_dilated and not transposed):
        return ()
    deep = transposed and len(conv.inp) == 3
    strides = contiguous(grad.shape) if deep else grad.stride()
    if not axes_apart(grad.shape, strides, [0, *range(2, grad.dim())]):
        return ()
    beside = conv.oc * conv.itemsize + (columns + copied(grad) if deep else 0)
    return (Phase(int(wanted[0]) + int(deep and wanted[1]), beside + FLOAT * (grad.numel() + conv.oc)),)
