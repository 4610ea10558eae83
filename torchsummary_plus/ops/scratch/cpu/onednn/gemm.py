"""Blocking of oneDNN's im2col convolution.

``src/cpu/gemm_convolution_utils.cpp``, ``init_conf``, for the forward in the default layout: oneDNN rates divisions of
the work among threads and into blocks of channels and pixels by a model of the L2 cache, and takes the best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .....data.rounding import ceil_div, round_up
from ....processor import second_cache
from .description import Conv, lanes, threads

LEAST_CHANNELS = 8
"""Least output channels per block."""
PANEL = 48
"""Pixel multiple at which products are fast."""
MISSED = 20
"""Cost of an access that misses the cache."""
STRIDED = 8
"""Slowdown of unfolding with strides."""
WEIGHTS = 8 + 1 + 1 + 1 + 1 + 1 + 0.5 + 1
"""Sum of the weights in the rating."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Threads along the output channels; output channels, pixels and input channels per block."""

    sharing: int
    channels: int
    pixels: int
    depth: int


def patches_at_once(conv: Conv) -> int:
    """Return the column elements that a thread unfolds at once; all of an image where blocks are not rated."""
    blocks = best_blocks(conv)
    return blocks.depth * prod(conv.kernel) * blocks.pixels


def takes_blocks(conv: Conv) -> bool:
    """Whether blocks are rated: for kernels that need unfolding, with work for every thread."""
    pixels, images = prod(conv.out[-2:]), conv.batch * conv.groups
    depth = conv.ic * prod(conv.kernel)
    is_wide = conv.stride[-1] == 1 and depth <= 0.05 * conv.oc
    return images * pixels >= threads() * lanes()[0] or pixels < images or is_wide


def best_blocks(conv: Conv) -> Blocks:
    """Return the first of the highest-rated blocks."""
    best, highest = Blocks(1, 1, 1, conv.ic), 0.0
    spatial = conv.batch * conv.groups * prod(conv.out[-2:])
    for sharing in range(1, threads() + 1):
        most = ceil_div(conv.oc, sharing), ceil_div(spatial, threads() // sharing)
        blocks, rate = _rated(conv, sharing, *most)
        if rate > highest:
            best, highest = blocks, rate
        if (best.channels, best.pixels, best.depth) == (*most, conv.ic):
            continue
        for channels, pixels in _candidates(conv, *most):
            blocks, rate = _rated(conv, sharing, channels, pixels)
            if rate > highest:
                best, highest = blocks, rate
    return best


def _candidates(conv: Conv, channels: int, pixels: int) -> Iterator[tuple[int, int]]:
    """Yield output channels and pixels of blocks that fill the cache in various ways, and nearby multiples."""
    cache, wide, depth = second_cache() // conv.itemsize, lanes()[0], conv.ic
    image = prod(conv.stride) + prod(conv.kernel)
    weights = prod(conv.kernel) * channels
    some = _within(LEAST_CHANNELS, channels, _cut(cache - image * depth * wide - weights * depth, wide))
    yield from _near(some, _within(wide, pixels, _cut(cache - weights * depth, image * depth + some)), wide)
    most = max(1, cache // (2 * LEAST_CHANNELS * image + 2 * weights))
    if most < depth:
        part = depth // max(1, depth // most)
        at_once = max(1, _cut(cache - 2 * weights * part, 2 * part * image))
        some = cache // 2 // at_once
        if some > channels:
            some = channels
            at_once = _within(wide, pixels, _cut(cache - weights * part, image * part + some))
        elif at_once > pixels:
            at_once = pixels
            some = _within(LEAST_CHANNELS, channels, _cut(cache - image * part * at_once - weights * part, at_once))
        yield from _near(some, at_once, wide)
    whole = _cut(cache - weights * depth, image * depth + channels)
    yield from _near(channels, max(wide, _cut(whole, wide) * wide), wide)


def _near(channels: int, pixels: int, wide: int) -> Iterator[tuple[int, int]]:
    below, above = channels // 8 * 8, round_up(channels, 8)
    yield channels, pixels
    yield below, pixels // PANEL * PANEL
    yield above, pixels // PANEL * PANEL
    yield above, round_up(pixels, wide)
    yield above, round_up(pixels, PANEL)


def _rated(conv: Conv, sharing: int, channels: int, pixels: int) -> tuple[Blocks, float]:
    """Return the blocks as they would be used, and their rating."""
    wide, kernel = lanes()[0], prod(conv.kernel)
    size, depth = prod(conv.out[-2:]), conv.ic * kernel
    spatial = conv.batch * conv.groups * size
    own, own_pixels = ceil_div(conv.oc, sharing), ceil_div(spatial, threads() // sharing)
    channels = min(own, _within(LEAST_CHANNELS, own, channels))
    most_pixels = min(size, own_pixels)
    pixels = min(most_pixels, _within(wide, own_pixels, pixels))
    fits = _deepest(conv, channels, pixels, own, own_pixels)
    cost = MISSED if fits < 1 else 1
    part = max(1, conv.ic // ceil_div(conv.ic, max(1, fits)))
    parts, rows = ceil_div(conv.ic, part), part * kernel

    read = conv.ic * round_up(own_pixels * prod(conv.stride), wide)
    tail = round_up(pixels, wide) / pixels
    laid_out = int(cost * 2 * kernel * read * tail) * (STRIDED if conv.stride[-1] != 1 else 1)
    wrote = cost * own * round_up(own_pixels, wide) * (1 if part == conv.ic else 2 * parts - 1)
    moved = cost * kernel * read + laid_out + cost * own * round_up(depth, wide) + wrote
    terms = (
        _balance(conv, sharing, spatial) ** 8,
        own / round_up(own, channels),
        most_pixels / round_up(most_pixels, pixels),
        conv.ic / round_up(conv.ic, part),
        pixels / round_up(pixels, 3 * wide),
        own_pixels / wide * own * depth / moved,
        (pixels * channels * rows / (own * own_pixels * depth)) ** 0.5,
        pixels / wide * channels * rows
        / (round_up(pixels, wide) * rows + channels * round_up(rows, wide) + channels * round_up(pixels, wide)),
    )  # fmt: skip
    return Blocks(sharing, channels, pixels, part), prod(terms) ** (1 / WEIGHTS)


def _deepest(conv: Conv, channels: int, pixels: int, own: int, own_pixels: int) -> int:
    """Return the input channels that fit in the cache next to a block's input and output."""
    cache, kernel = second_cache() // conv.itemsize, prod(conv.kernel)
    row, columns = prod(conv.stride) * pixels, kernel * pixels
    together = _cut(cache - channels * pixels, row + columns + kernel * own)
    if pixels < own_pixels:
        return together
    most = cache // (row + columns)
    if channels < own:
        most = min(most, _cut(cache - channels * pixels, columns + kernel * channels))
    return together if most < conv.ic else most


def _balance(conv: Conv, sharing: int, spatial: int) -> float:
    """Return the least busy thread's work divided by the busiest one's."""
    workers = threads()
    most, least = ceil_div(conv.oc, sharing), max(1, conv.oc // sharing)
    by_most = ceil_div(spatial, workers // sharing)
    few = ceil_div(workers, sharing)
    if conv.oc % sharing > workers % sharing:
        busiest = most * by_most
    else:
        busiest = max(most * ceil_div(spatial, few), least * by_most)
    fewest = max(1, spatial // few)
    if workers % sharing > conv.oc % sharing:
        idlest = least * fewest
    else:
        idlest = min(most * fewest, least * (spatial // (workers // sharing)))
    return idlest / busiest


def _within(least: int, most: int, value: int) -> int:
    return max(least, min(most, value))


def _cut(value: int, by: int) -> int:
    """Divide towards zero, as C++ does."""
    return value // by if value >= 0 else -(-value // by)
