"""Channels-last convolutions on AVX-512 whose input oneDNN first copies into the rows of a matrix (``exec_trans``).

Source: ``init_conf``, ``iterate_ker_block`` and ``select_ic_block`` in ``jit_brgemm_conv_utils.cpp``, whose names are
in brackets.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .....data.rounding import ceil_div, round_up
from ....processor import second_cache
from .description import FLOAT, PAGE, Conv, aligned, threads

ROWS = 16
"""Rows of a product are rounded up to these where it covers several rows of the image (``amx_h``)."""

WIDEST = 10_800
"""Width from which a product covers one row of the image."""

UNROLLED = {64: 6, 48: 9, 32: 14, 16: 28}
"""Rows of a product in registers, by its columns (``estimate_ur``)."""


def is_lowered(conv: Conv, wide: int) -> bool:
    """Whether a forward copies patches of a single channel (``relo_type``)."""
    return wide == 16 and squeezed(conv, wide).ic * conv.groups == 1 and (_by_patches(conv) or _by_rows(conv))


def _is_narrow(conv: Conv) -> bool:
    """Whether the result is one column wide, and so is the kernel: its rows are those of the matrix."""
    return conv.kernel[-1] == conv.out[-1] == _deep(conv.out)[0] == 1


def squeezed(conv: Conv, wide: int) -> Conv:
    """Turn neighbours along the width into channels of one, if the stride skips none of them (``trans_dim_koef``)."""
    width, kernel, stride = conv.inp[-1], conv.kernel[-1], conv.stride[-1]
    channels = conv.ic
    if conv.groups > 1 or conv.dilation[-1] > 1 or conv.padding[-1] or conv.ends[-1] > 0:
        return conv
    if channels > wide and channels % wide:
        return conv
    joined = 1
    for size in range(2, min(kernel, stride, width) + 1):
        fills_registers = channels * size <= wide or channels * size % wide == 0
        if fills_registers and width % size == kernel % size == stride % size == 0:
            joined = size
    return replace(
        conv, ic=channels * joined, inp=(*conv.inp[:-1], width // joined),
        kernel=(*conv.kernel[:-1], kernel // joined), stride=(*conv.stride[:-1], stride // joined),
    )  # fmt: skip


def copies(conv: Conv, columns: int, wide: int, is_forward: bool = True) -> tuple[int, int]:
    """Return the scratch of the copies, with the weights' in blocks of columns, and by how much it may be off.

    Of results with few rows, a direct kernel computes some, without any scratch.
    """
    is_single, is_one = is_forward and is_lowered(conv, wide), prod(conv.kernel) == 1 and not any(conv.padding)
    conv = squeezed(conv, wide) if is_forward else conv
    if wide < ROWS or is_one or not (is_single or _is_narrow(conv)):
        return 0, 0
    by_patches = is_single and _by_patches(conv)
    channels = _channels(conv, columns)
    depth, height = (1, 1) if by_patches else _blocks(conv, columns, channels)
    blocks = conv.groups * ceil_div(conv.ic, channels)
    copied = round_up(_copied(conv, depth, height, by_patches) * blocks * channels, PAGE)
    parts = ceil_div(_deep(conv.out)[0], depth) * ceil_div(conv.out[-2], height) * blocks
    marks, most = (threads() * round_up(parts * across, PAGE) for across in (1, conv.out[-1]))
    pieces, guess = [threads() * copied * conv.itemsize, marks], most - marks
    if is_single:
        weights = {
            size: _weights(conv, size) for size in (columns, *range(wide, min(64, round_up(conv.oc, wide)) + 1, wide))
        }
        pieces.append(weights[columns])
        guess += max(weights.values()) - min(weights.values())
    scratch = sum(aligned(piece, PAGE) for piece in pieces)
    return scratch, guess + (scratch + PAGE * 3 if conv.batch * prod(conv.out) < 2 * ROWS else 0)


def _weights(conv: Conv, columns: int) -> int:
    """Return the bytes of the weights in rows of patches (``wei_buffer_size``)."""
    return round_up(round_up(conv.oc, columns) * prod(conv.kernel[-2:]), 1024) * conv.itemsize


def _by_patches(conv: Conv) -> bool:
    """Whether a row of the matrix is a patch (``relo_whi``)."""
    return len(conv.inp) == 2 and not conv.is_dilated and conv.kernel[-2] > 1 and conv.out[-1] > 4


def _by_rows(conv: Conv) -> bool:
    """Whether a row of the matrix is a row of a patch (``relo_wi``)."""
    return conv.kernel[-1] > 1 and conv.dilation[-1] == 1


def _deep(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes of three axes."""
    return sizes if len(sizes) == 3 else (1, *sizes)


def _padded(conv: Conv) -> tuple[int, ...]:
    """Return the input's sizes with its padding (``idp``, ``ihp``, ``iwp``)."""
    return _deep(tuple(i + p + e for i, p, e in zip(conv.inp, conv.padding, conv.ends)))


def _cache() -> int:
    """Return the bytes of the second cache that oneDNN plans with."""
    return second_cache() * 3 // 4


def _channels(conv: Conv, columns: int) -> int:
    """Return how many channels are multiplied at once (``ic_block``): as many as fit the second cache."""
    rows = UNROLLED[columns]
    if not _covers_rows(conv):
        rows = min(conv.inp[-1], (rows - 1) * conv.stride[-1] + conv.reach[-1])
    per_register = FLOAT * ROWS * prod(conv.kernel[:-1]) * (conv.kernel[-1] * columns + rows)
    return min(conv.ic, ROWS * max(1, (_cache() - FLOAT * UNROLLED[columns] * columns) // per_register))


def _blocks(conv: Conv, columns: int, channels: int) -> tuple[int, int]:
    """Return how many slices and rows of the result are computed at once (``od_block``, ``oh_block``)."""
    slices, rows, width = _padded(conv)
    depth, height, _ = _deep(conv.out)
    per_row = FLOAT * (2 * channels * width + conv.out[-1] * columns)
    besides = FLOAT * columns * (prod(conv.kernel) * channels + 2 * ROWS)
    room = min(ceil_div(_cache(), 2), max(0, _cache() - besides))
    at_once = 1, height
    if slices * rows * per_row > room:
        deep = min(max(1, room // (rows * per_row)), depth)
        at_once = deep, height if deep > 1 else min(max(1, room // per_row), height)
    groups = conv.groups if conv.oc > 32 else 1
    shares = ceil_div(threads(), conv.batch * ceil_div(groups * conv.oc, columns))
    deep_share = ceil_div(depth, shares)
    return min(at_once[0], deep_share), min(at_once[1], ceil_div(height, shares * ceil_div(depth, deep_share)))


def _copied(conv: Conv, depth: int, height: int, by_patches: bool) -> int:
    """Return the elements per channel of the copies for one block (``inp_buffer_size``)."""
    padded, reach, stride = _padded(conv), _deep(conv.reach), _deep(conv.stride)
    front, ends = (0, *conv.padding)[-3:], (0, *conv.ends)[-3:]
    slices, rows = (
        min(padded[axis], (size - 1) * stride[axis] + reach[axis]) + front[axis] + max(0, ends[axis])
        for axis, size in enumerate((depth, height))
    )
    taps = conv.kernel[-2] if by_patches else 1
    pitch = taps * stride[-1] * (reach[-1] if conv.out[-1] == 1 else 1)
    if _covers_rows(conv):
        covered = round_up(conv.out[-1] * height, ROWS)
        rows = ceil_div(round_up(rows * padded[-1], covered), padded[-1]) + conv.kernel[-2] * conv.dilation[-2]
    besides = ((conv.out[-2] - 1) * stride[-2] + 1) * pitch if by_patches else 0
    return int(taps * slices * rows * padded[-1] * pitch + besides)


def _covers_rows(conv: Conv) -> bool:
    """Whether a product covers several rows of the image (``is_os_blocking``)."""
    is_padded_little = all(k > max(p, e) for k, p, e in zip(conv.kernel, conv.padding, conv.ends))
    is_apart = conv.out[-1] == 1 or conv.reach[-1] <= conv.stride[-1]
    return is_padded_little and _padded(conv)[-1] < WIDEST and conv.stride[-2] == 1 and is_apart
