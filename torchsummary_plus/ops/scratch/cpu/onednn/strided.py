"""The input's gradient of a strided convolution as products of small matrices, in the blocks that oneDNN rates best.

Source: ``jit_brgemm_conv_bwd_strided.cpp`` and ``jit_brgemm_conv_bwd_utils.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import ceil, prod

from .....data.rounding import ceil_div, round_up
from ....processor import second_cache
from .description import FLOAT, PAGE, Conv, Plan, aligned, batch_elements, channels_last_plan, threads
from .strided_cost import efficiency
from .strided_volume import Blocks, Volume, volume

LEAST_EFFICIENCY = 1e-5
"""Blocks below this estimate are not used (``min_eff``)."""

TILE_ROWS = 16
"""``amx_h``, which also counts without AMX."""


def is_strided_product(conv: Conv, wide: int) -> bool:
    """Whether the input's gradient is a product of small matrices (brgemm) in channels-last."""
    is_candidate = conv.is_strided and not conv.is_dilated and (conv.groups == 1 or conv.oc > wide)
    return is_candidate and strided_blocks(conv, wide, threads()) is not None


def strided_product(conv: Conv, wide: int) -> Plan:
    """Return the plan of ``brgemm_convolution_bwd_strided_t``: padded gradients of one image per thread."""
    workers, deep, blocks = threads(), volume(conv, wide), strided_blocks(conv, wide, threads())
    assert blocks is not None, "is_strided_product comes first"
    parts = prod(map(ceil_div, deep.inp, (blocks.depth, blocks.height, blocks.row)))
    scratch = (
        batch_elements(prod(blocks.kernel))
        + aligned(workers * round_up(prod(deep.padded) * conv.groups * conv.oc, PAGE) * conv.itemsize, PAGE)
        + aligned(workers * round_up(parts * conv.groups, PAGE), PAGE)
    )
    if deep.is_uneven:
        row = blocks.row * deep.across * conv.groups * conv.ic
        scratch += aligned(workers * round_up(row, PAGE) * conv.itemsize, PAGE)
    return channels_last_plan(conv.mirrored, conv.weights_in(1, blocks.columns), scratch)


@lru_cache(maxsize=4096)
def strided_blocks(conv: Conv, wide: int, workers: int) -> Blocks | None:
    """Return the blocks with the best estimate, the first of equal ones; ``None`` if oneDNN takes another kernel."""
    deep = volume(conv, wide)
    best, most = None, 0.0
    for blocks in _candidates(deep, workers):
        rated = efficiency(deep, blocks, workers)
        if rated > most and rated >= LEAST_EFFICIENCY:
            best, most = blocks, rated
    return best


def _candidates(deep: Volume, workers: int) -> Iterator[Blocks]:
    """Yield the blocks in the order in which oneDNN tries them: from the widest, with the whole kernel first."""
    conv = deep.conv
    for count in range(min(ceil_div(conv.ic, deep.wide), 4), 0, -1):
        columns = count * deep.wide
        if not _may_cover(deep, columns):
            continue
        depth, height = _slices(deep, columns, workers)
        sides = (dict.fromkeys((k, s)) if k > 1 else (1,) for k, s in zip(deep.kernel[:2], deep.stride))
        for first, second in product(*sides):
            for row in _rows(deep, columns, workers):
                yield Blocks(columns, (first, second, deep.kernel[2]), depth, height, row)


def _may_cover(deep: Volume, columns: int) -> bool:
    """Whether oneDNN considers so many columns at once (``fast_check_ic_block``)."""
    padded, steps = round_up(deep.conv.ic, deep.wide), prod(deep.stride)
    if deep.is_one:
        if columns == 64:
            return padded % columns == 0 and prod(deep.inp) >= 64 * steps
        return columns != 48 or deep.conv.ic / round_up(deep.conv.ic, columns) >= 0.95
    if columns == 64:
        return padded % columns == 0 and padded < 192
    return columns != 48 or (padded % columns == 0 and padded <= 384 and prod(deep.out) > 81 * steps)


def _slices(deep: Volume, columns: int, workers: int) -> tuple[int, int]:
    """Return how many slices and rows of the result a thread computes at once (``id_block``, ``ih_block``)."""
    conv, second = deep.conv, second_cache()
    (slices, rows, width), (steps_deep, steps, _) = deep.inp, deep.stride
    row = FLOAT * (2 * conv.oc * deep.padded[2] + width * columns)
    other = FLOAT * columns * (prod(deep.kernel) * conv.oc + 2 * TILE_ROWS)
    room = min(ceil_div(second, 2), max(0, second - other))
    depth, height = 1, rows
    if prod(deep.padded[:2]) * row > room:
        depth = _between(1, slices, room // (deep.padded[1] * row))
        height = _between(1, rows, room // row) if depth == 1 else rows
    shares = ceil_div(workers, conv.batch * ceil_div((conv.groups if conv.ic > 32 else 1) * conv.ic, columns))
    share = ceil_div(slices, shares)
    depth = min(depth, share)
    height = min(height, ceil_div(rows, shares * ceil_div(slices, share)))
    return _divided(depth, slices, steps_deep), _divided(height, rows, steps)


def _between(least: int, most: int, size: int) -> int:
    return max(least, min(most, size))


def _divided(block: int, size: int, step: int) -> int:
    """Return the next block that is a multiple of the stride and divides the size if the stride does."""
    while block < size and (block % step or (size % step == 0 and size % block)):
        block += 1
    return block


def _rows(deep: Volume, columns: int, workers: int) -> Iterator[int]:
    """Yield the widths of the result that a thread may compute at once (``iw_block``), from the widest."""
    conv, width = deep.conv, deep.inp[2]
    work = conv.batch * conv.groups * ceil_div(conv.ic, columns) * prod(deep.inp)
    most = min(_between(1, deep.width, ceil(work / (0.9 * workers))), width)
    most = round_up(most, deep.across) if deep.is_uneven else most
    before = 0
    for count in range(1, deep.width + 1):
        row = ceil_div(deep.width, count)
        if row == before or row > most or row % deep.across or (not deep.is_uneven and width % row):
            continue
        before = row
        yield row
