"""Scratch memory of ATen's own convolutions on the CPU, which lay the patches out in the columns of a matrix.

ATen/native: ConvolutionMM2d.cpp, ConvolutionMM3d.cpp, NaiveDilatedConvolution.cpp, NaiveConvolutionTranspose2d.cpp and
3d.cpp; Convolution.cpp takes groups one after another.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .onednn import Conv
from .workspace_registry import Phase

Phases = tuple[Phase, ...]


def forward(conv: Conv, transposed: bool, copies: int) -> Phases:
    """``copies``: bytes of the contiguous copies of what is read, 0 where it is contiguous."""
    if _takes_groups_apart(conv, transposed):
        one = _one_group(conv)
        share = one.read if conv.batch > 1 else 0
        before = (conv.groups - 1) * one.written + share
        inner = forward(one, transposed, 0) or (Phase(1, 0),)
        parts = tuple(Phase(0, before + phase.results * one.written + phase.nbytes) for phase in inner)
        return (*parts, Phase(1, conv.written))
    if transposed and len(conv.inp) == 3:
        ones = conv.itemsize * prod(conv.out) if conv.bias else 0
        return Phase(1, conv.read), Phase(1, copies + _back_columns(conv) + ones)
    if transposed:
        return (Phase(1, copies + conv.batch * _back_columns(conv)),)
    if conv.is_dilated:
        return (Phase(1, copies + _columns(conv)),)
    return (Phase(1, copies + (0 if _is_plain(conv) else conv.batch * _columns(conv))),)


def backward(conv: Conv, transposed: bool, wanted: tuple[bool, bool, bool], copies: int) -> Phases:
    """The gradient of the input first, then those of weights and bias; ``wanted`` says which."""
    results = sum(wanted)
    if _takes_groups_apart(conv, transposed):
        one = _one_group(conv)
        sizes = (one.read, one.weights, one.oc * one.itemsize)
        made = [size for size, is_wanted in zip(sizes, wanted) if is_wanted]
        share = one.read + one.written if conv.batch > 1 else 0
        before = (conv.groups - 1) * sum(made) + share
        inner = backward(one, transposed, wanted, 0) or (Phase(results, 0),)
        parts = tuple(Phase(0, before + sum(made[: phase.results]) + phase.nbytes) for phase in inner)
        return (*parts, Phase(results, conv.groups * sum(made)))
    for_data, for_weights = _backward_columns(conv, transposed)
    if not transposed and conv.is_dilated:
        bias = conv.oc * conv.itemsize if wanted[2] else 0
        return (Phase(results, copies + for_data + bias),)
    phases: Phases = (Phase(1, copies + for_data),) if wanted[0] else ()
    return (*phases, Phase(results, copies + for_weights)) if wanted[1] else phases


def _takes_groups_apart(conv: Conv, transposed: bool) -> bool:
    """One group after another, of copies; the 3-d kernel alone takes all at once."""
    return conv.groups > 1 and (transposed or conv.is_dilated or len(conv.inp) == 2)


def _one_group(conv: Conv) -> Conv:
    return replace(conv, groups=1)


def _is_plain(conv: Conv) -> bool:
    """A 1x1 kernel without stride or padding, for which the input is a matrix of columns already."""
    return prod(conv.kernel) == conv.groups == 1 and not conv.is_strided and not any(conv.padding)


def _columns(conv: Conv) -> int:
    """The patches of one image."""
    return conv.itemsize * conv.groups * conv.ic * prod(conv.kernel) * prod(conv.out)


def _back_columns(conv: Conv) -> int:
    """The patches of one image that a transposed convolution adds up."""
    return conv.itemsize * conv.oc * prod(conv.kernel) * prod(conv.inp)


def _backward_columns(conv: Conv, transposed: bool) -> tuple[int, int]:
    """Those for the gradient of the input, and for that of the weights."""
    if transposed:
        size = 0 if _is_plain(conv) else _back_columns(conv)
        return size, size
    size = _columns(conv)
    if conv.is_dilated:
        return size, size
    every = conv.batch * size
    for_weights = 0 if _is_plain(conv) else every
    return (every if len(conv.inp) == 3 else 0), for_weights
