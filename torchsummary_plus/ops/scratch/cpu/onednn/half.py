"""Convolutions in half precision, whose kernels differ with each instruction set: about float32's, within a bound.

oneDNN 3.12: cpu_convolution_list.cpp (``jit_avx512_core_bf16_*``, ``brgemm_*``, ``jit_avx512_core_amx_*``). All take
blocks of 16 channels, as float32's kernels on AVX-512; their own scratch memory is tiles and, for the gradient of the
weights, sums in float32 and turned images for each thread.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from ....processor import is_half
from ...registry import AtMost, Phase
from ..general import sums_apart
from .description import Conv, threads

FLOAT = 4
WIDE = 16
TILES = 128 * 1024
"""Bytes of a thread's tiles, tables and pages at most; measured: up to 62 KiB."""


def uncertain(conv: Conv, phases: tuple[Phase, ...]) -> AtMost:
    """Phases that may be of nothing, with the most that may come on top of them."""
    known = tuple(phase._replace(band=1.0) for phase in phases)
    images = conv.read_in(WIDE) + conv.written_in(WIDE)
    wide = replace(conv, itemsize=FLOAT)
    sums = wide.weights_in(WIDE, WIDE)
    columns = FLOAT * conv.groups * max(conv.ic, conv.oc) * prod(conv.kernel) * max(prod(conv.inp), prod(conv.out))
    return AtMost(2 * images + 2 * sums + threads() * (sums + columns + TILES), known)


def bias_sum(conv: Conv, transposed: bool, grad: Any, wanted: tuple[bool, bool, bool]) -> tuple[Phase, ...]:
    """ATen's own gradient of the bias in half precision, summed up in float32 before that of the weights is there.

    Not for groups, nor for dilated kernels, which sum up image by image. Source: ConvolutionMM2d.cpp,
    ConvolutionMM3d.cpp, NaiveConvolutionTranspose2d.cpp and 3d.cpp.
    """
    if not wanted[2] or not is_half(grad.dtype) or conv.groups > 1 or (conv.is_dilated and not transposed):
        return ()
    dims = [0, *range(2, grad.dim())]
    read = grad if any(grad.stride()) else grad.contiguous()
    if not sums_apart(read, dims):
        return ()
    bias = conv.oc * conv.itemsize
    deep = transposed and len(conv.inp) == 3
    columns = conv.itemsize * conv.oc * prod(conv.kernel) * prod(conv.inp) if deep else 0
    return (Phase(int(wanted[0]) + int(deep and wanted[1]), bias + columns + FLOAT * (grad.numel() + conv.oc)),)
