"""How well oneDNN expects a thread to be used by given blocks: how busy it is, and how long it waits for memory.

Every term mirrors one of ``jit_brgemm_conv_bwd_utils.cpp`` (``brg_blocking_t``) or of ``brgemm_blocking_vmm`` in
``brgemm_utils.cpp``, whose names are in brackets. Sizes are in elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import c_float
from dataclasses import dataclass
from math import prod

from .....data.rounding import ceil_div, round_up
from ....processor import first_cache, second_cache
from .description import FLOAT
from .strided_volume import Blocks, Volume

AFTER_L1, AFTER_L2, AFTER_L3 = 1.0, 3.0, 15.0
"""Relative waits for memory (``L1_k``, ``L2_k``, ``L3_k`` and ``mem_k``)."""


@dataclass(frozen=True, slots=True)
class Loop:
    """What an iteration touches, and how often it repeats, for the gradient read, the weights and the result."""

    touched: tuple[int, int, int]
    repeats: tuple[int, int, int] = (1, 1, 1)
    overlap: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """What the busiest thread computes: blocks of columns, and sizes of the result."""

    job: int
    blocks: int
    registers: int
    images: int
    sizes: tuple[int, int, int]
    counts: tuple[int, int, int]


def efficiency(deep: Volume, blocks: Blocks, workers: int) -> float:
    """Estimate how well a thread is used (``est_eff``, ``est_eff_1x1``)."""
    conv, wide = deep.conv, deep.wide
    unroll, columns = _unroll(deep, blocks), blocks.columns // wide
    parts = _parts(deep, blocks)
    work = conv.batch * conv.groups * ceil_div(conv.ic, blocks.columns) * prod(parts)
    share = _share(deep, blocks, parts, ceil_div(work, workers))
    inner = unroll * (2 - min(1.9, unroll / blocks.row)) / 64
    return (
        (conv.ic / round_up(conv.ic, blocks.columns))
        * (columns * unroll / ((unroll + columns) * (32 if wide == 16 else 16)))
        * (deep.width / round_up(deep.width, blocks.row))
        * _balance(deep, blocks, parts, work, workers)
        * (blocks.row / round_up(blocks.row, unroll))
        * (_near_memory(deep, blocks, share, unroll) / workers)
        * ((1 + inner) / 2)
    )


def _parts(deep: Volume, blocks: Blocks) -> tuple[int, int, int]:
    """Return the number of blocks along each axis of the result."""
    slices, rows, _ = deep.inp
    return ceil_div(slices, blocks.depth), ceil_div(rows, blocks.height), ceil_div(deep.inp[2], blocks.row)


def _balance(deep: Volume, blocks: Blocks, parts: tuple[int, int, int], work: int, workers: int) -> float:
    """Return the mean work of the threads as a share of the most that one has (``job_eff``)."""
    if ceil_div(work, workers) >= workers:
        return work / round_up(work, workers)
    conv = deep.conv
    axes = (conv.batch, deep.inp[0], deep.inp[1], parts[2], conv.groups, ceil_div(conv.ic, blocks.columns))
    order = (0, 4, 5, 1, 2, 3) if deep.is_outermost else (0, 1, 2, 3, 4, 5)
    jobs = [
        sum(
            min(deep.width - row * blocks.row, blocks.row) * min(conv.ic - block * blocks.columns, blocks.columns)
            for row, block in _places(axes, order, *_turn(work, workers, worker))
        )
        for worker in range(workers)
    ]
    return sum(jobs) / (max(jobs) * workers) if max(jobs) else 1.0


def _turn(work: int, workers: int, worker: int) -> tuple[int, int]:
    """Return a thread's first piece of the work and the number of its pieces (``balance211``)."""
    fewer, busy = divmod(work, workers)
    return worker * fewer + min(worker, busy), fewer + (worker < busy)


def _places(axes: Sequence[int], order: Sequence[int], start: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the blocks of rows and of columns of a thread's pieces; the estimate steps twice after each."""
    place = [0] * len(axes)
    for axis in reversed(order):
        start, place[axis] = divmod(start, axes[axis])
    for _ in range(count):
        yield place[3], place[5]
        _step(place, axes, range(len(axes)))
        _step(place, axes, order)


def _step(place: list[int], axes: Sequence[int], order: Sequence[int]) -> None:
    """Go on to the next place, whose last axis moves first."""
    for axis in reversed(order):
        place[axis] = (place[axis] + 1) % axes[axis]
        if place[axis]:
            return


def _share(deep: Volume, blocks: Blocks, parts: tuple[int, int, int], job: int) -> Share:
    conv = deep.conv
    channels = ceil_div(conv.ic, blocks.columns)
    within = 1 if deep.is_outermost else conv.groups * channels
    count = min(channels, ceil_div(job, prod(parts) if deep.is_outermost else 1))
    rows = min(parts[2], ceil_div(job, within))
    high = min(parts[1], ceil_div(job, parts[2] * within))
    deeply = min(parts[0], ceil_div(job, parts[1] * parts[2] * within))
    sizes = (
        min(deep.inp[0], deeply * blocks.depth),
        min(deep.inp[1], high * blocks.height),
        min(deep.width, rows * blocks.row),
    )
    images = min(conv.batch, ceil_div(job, prod(parts) * conv.groups * channels))
    registers = ceil_div(min(conv.ic, count * blocks.columns), deep.wide)
    return Share(job, count, registers, images, sizes, (deeply, high, rows))


def _near_memory(deep: Volume, blocks: Blocks, share: Share, unroll: int) -> float:
    """Return the products of one thread and pass, divided by what they cost (``cache_eff`` times the threads)."""
    conv = deep.conv
    loops = _loops_of_one(deep, blocks, share, unroll) if deep.is_one else _loops(deep, blocks, share, unroll)
    waits, repeats = [AFTER_L3] * 3, [1] * 3
    for loop in reversed(loops):
        for part, times in enumerate(loop.repeats):
            reused = times * (loop.overlap if part == 0 else 1)
            waits[part] = _wait(loop, reused, waits[part], part == 0)
            repeats[part] *= times
    pixels = share.images * prod(share.sizes)
    taps = prod(deep.kernel) * conv.oc
    operations = pixels * taps, taps * share.registers, pixels * share.registers
    cost = sum(wait * count * repeat for wait, count, repeat in zip(waits, operations, repeats))
    calls = share.job * prod(ceil_div(k, b) for k, b in zip(deep.kernel, blocks.kernel))
    return conv.batch * prod(deep.inp[:2]) * deep.width * conv.oc * conv.ic / (cost + calls)


def _loops(deep: Volume, blocks: Blocks, share: Share, unroll: int) -> list[Loop]:
    """Return the loops of a thread, the innermost first."""
    conv, wide, columns, row = deep.conv, deep.wide, blocks.columns, blocks.row
    (slices, rows, width), (deeply, high, across) = share.sizes, share.counts
    deep_taps, taps, step = prod(deep.kernel[:2]), prod(deep.kernel), prod(blocks.kernel[:2])
    panel, block = columns * conv.oc, prod(blocks.kernel) * columns * conv.oc
    kernel = deep.kernel[2]
    unrolled, read, read_all = (_read(deep, size) for size in (unroll, row, width))
    chosen = columns // wide if deep.is_outermost else share.registers
    weights, written = taps * chosen * conv.oc * wide, chosen * wide
    per_image = slices * rows * deep_taps * read_all
    by_columns = (
        Loop((per_image, taps * panel, columns * prod(share.sizes)), (share.blocks, 1, 1))
        if deep.is_outermost
        else Loop((deep_taps * read, taps * panel, row * columns), (share.blocks, 1, 1))
    )
    inner = [
        Loop((_columns_read(deep, unroll) * wide, columns, 0), overlap=wide),
        Loop((unrolled, panel, 0), overlap=kernel),
        Loop((unrolled, kernel * panel, 0)),
        Loop((step * unrolled, block, unroll * columns), (1, ceil_div(row, unroll), 1)),
        Loop((step * read, block, row * columns), (1, 1, prod(map(ceil_div, deep.kernel, blocks.kernel)))),
        Loop((deep_taps * read, taps * panel, row * columns)),
    ]
    outer = [
        Loop((deep_taps * read, weights, row * written), (1, across, 1)),
        Loop((blocks.height * deep_taps * read_all, weights, width * written), (1, high, 1)),
        Loop((blocks.depth * rows * deep_taps * read_all, weights, rows * width * written), (1, deeply, 1)),
    ]
    whole = share.registers * wide
    images = Loop((per_image, taps * whole * conv.oc, prod(share.sizes) * whole), (1, share.images, 1))
    middle = [*outer, by_columns] if deep.is_outermost else [by_columns, *outer]
    return [*inner, *middle, images]


def _loops_of_one(deep: Volume, blocks: Blocks, share: Share, unroll: int) -> list[Loop]:
    """Return the loops for a kernel of one element, the innermost first."""
    conv, wide, columns, row = deep.conv, deep.wide, blocks.columns, blocks.row
    (slices, rows, width), (deeply, high, across) = share.sizes, share.counts
    padded, panel = round_up(conv.oc, wide), columns * conv.oc
    chosen = columns // wide if deep.is_outermost else share.registers
    weights, written = chosen * wide * (conv.oc if deep.is_outermost else conv.ic), chosen * wide
    by_columns = (
        Loop(
            (slices * rows * round_up(width * conv.oc, wide), panel, columns * prod(share.sizes)), (share.blocks, 1, 1)
        )
        if deep.is_outermost
        else Loop((row * round_up(conv.ic, wide), columns * conv.ic, row * columns), (share.blocks, 1, 1))
    )
    inner = [
        Loop((unroll * wide, columns, 0), overlap=wide),
        Loop((unroll * padded, panel, unroll * columns), (1, ceil_div(row, unroll), 1)),
        Loop((row * conv.oc, panel, row * columns)),
    ]
    high_rows, deep_rows = blocks.height * width, blocks.depth * rows * width
    outer = [
        Loop((row * conv.oc, weights, row * written), (1, across, 1)),
        Loop((high_rows * padded, weights, high_rows * written), (1, high, 1)),
        Loop((deep_rows * padded, weights, deep_rows * written), (1, deeply, 1)),
    ]
    whole, pixels = share.registers * wide, prod(share.sizes)
    images = Loop((pixels * padded, whole * conv.oc, pixels * whole), (1, share.images, 1))
    middle = [*outer, by_columns] if deep.is_outermost else [by_columns, *outer]
    return [*inner, *middle, images]


def _columns_read(deep: Volume, size: int) -> int:
    """Return the width of the gradient that ``size`` results read (``inp_w``)."""
    kernel = deep.kernel[2]
    return min(deep.out[2], (size - 1) * min(kernel, deep.across) + kernel)


def _read(deep: Volume, size: int) -> int:
    """Return the elements of the gradient that ``size`` results read, in whole registers (``rnd_inp_simd``)."""
    columns, channels = _columns_read(deep, size), deep.conv.oc
    if deep.across == 1:
        return round_up(columns * channels, deep.wide)
    return columns * round_up(channels, deep.wide)


def _wait(loop: Loop, times: float, before: float, is_read: bool) -> float:
    """Return the mean wait of a loop's iterations: the first waits as long as the loop around it (``io_k``)."""
    if times < 1:
        return 0.0
    amount = FLOAT * sum(loop.touched)
    if is_read and FLOAT * loop.touched[0] < first_cache():
        later = AFTER_L1
    else:
        later = AFTER_L2 if amount < second_cache() else AFTER_L3
    return (before + later * (times - 1)) / times


def _unroll(deep: Volume, blocks: Blocks) -> int:
    """Return the rows of a product that stay in registers (``bd_block``)."""
    conv = deep.conv
    rows = ceil_div(blocks.row, deep.across)
    count = (blocks.columns if conv.ic >= blocks.columns else conv.ic % blocks.columns) // deep.wide
    loads = 4 if count >= 4 else max(1, count)
    registers = 32 if deep.wide == 16 else 16
    one_load = deep.wide == 8 and loads == 4
    free = registers - (1 if one_load else loads + 1)
    most = min(free // (loads + one_load), registers // loads)
    best, unroll = 0.0, most
    for size in range(most, 0, -1):
        fits = _single(rows / round_up(rows, size))
        efficiency = _single(fits * _single(loads * size / ((loads + size) * most)))
        if FLOAT * size * conv.oc <= first_cache() and efficiency > best:
            best, unroll = efficiency, size
    return unroll


def _single(number: float) -> float:
    """Round to float32, in which several sizes may be equally good."""
    return float(c_float(number).value)
