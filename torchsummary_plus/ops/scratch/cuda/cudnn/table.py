"""cuDNN's workspaces where it cannot be queried, from ``table.json``, a table of its own answers.

``benchmarks/cuda/cudnn_table.py`` queries cuDNN for convolutions of many networks on six GPUs and fits a tree to the
answers per GPU, dtype, memory format and direction; the V100's are those of cuDNN 9.10, the last with its kernels. A
workspace nearly always consists of copies of some of the three tensors, in the kernel's layout with padded channels per
group, and of partial sums of the weights' gradient, or of Winograd's transforms of the tensors. A leaf names the copies
and gives the remainder as a multiple of the weights; Fourier's transforms are a multiple of the three tensors.

Each guess comes with a lower and an upper bound, as multiples of the three tensors' bytes; for small convolutions, the
upper one is what Fourier transforms or partial sums take at most. On convolutions held out of the fit, the guess is off
by at most 0.1 % of the three tensors' bytes for 75 %, by 33 % at the 90th percentile and by 99 % at the 95th (one copy
or transform more or less), and the bounds contain 99.1 % of the answers.
"""

from __future__ import annotations

import json
from functools import cache
from math import log2, prod
from pathlib import Path
from typing import Any, NamedTuple

from .....data.capability import Capability
from .....data.units import KIB, MIB, round_up
from .backend import Kind, Question

TABLE = Path(__file__).parent / "table.json"

TRANSFORMS, WINOGRAD_WEIGHTS, WINOGRAD = 8, 9, 10
"""Marks of leaves without copies: a multiple of the three tensors; Winograd's transforms of the weights alone, whose
3 x 3 taps become 5 x 5 numbers, or of all three tensors, with 6 x 6 numbers for each tile of 4 x 4 results."""

UNIT = 16
"""A leaf's first number is this many times the unit to which channels are padded, and the copied tensors or a mark."""

SMALL = 4 * MIB
"""Below this many bytes of the three tensors, the upper bound is a number of bytes; above, a multiple of theirs."""

PARTS = 20
"""99.9 % of small convolutions take at most this many times their tensors' bytes, or what Fourier transforms take."""

LONGEST, TILE = 256, 32
"""cuDNN transforms images whose padded sides are at most this long as a whole, others in tiles of this side."""

COPIES = 2
"""For small convolutions, and where the bounds coincide, the bounds are widened to this many copies of the tensors."""

LEAST_SIDE, TRIALS_UNIT = 16, 8
"""In trials: the least side of the squares of Fourier transforms, and the unit to which channels are padded."""

_FP32, _COMPLEX = 4, 8
"""Bytes of a float32, and of a complex number of two."""

ITEM = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


class Guess(NamedTuple):
    """A workspace in bytes, with its lower and upper bounds."""

    nbytes: int
    low: int
    high: int


def guess(question: Question, capability: Capability, tensor_cores: bool) -> Guess:
    """Return a convolution's workspace by the table, for a GPU of the same capability, else the nearest older one."""
    known = {name: tuple(numbers) for name, numbers in _table()["cards"].items()}
    older = [name for name, numbers in known.items() if numbers <= capability]
    card = max(older, key=known.__getitem__) if older else min(known, key=known.__getitem__)
    numbers = {"float32": "tf32" if tensor_cores else "float32", "float64": "float32"}.get(question.dtype, "float16")
    trees = _table()["trees"]
    tree = trees[f"{card} {numbers} {'last' if question.last else 'first'} {question.kind.name}"]
    node, bounds = trees[tree] if isinstance(tree, str) else tree  # Equal trees are stored once.
    values = features(question)
    while len(node) == 4:
        feature, threshold, below, above = node
        node = below if values[feature] <= threshold else above
    formula, rest, place = node
    low, high, most_kib = bounds[place]
    plain, (unit, taken) = tensor_bytes(question, 1), divmod(formula, UNIT)
    whole = sum(plain)
    if taken == TRANSFORMS:
        nbytes = round(rest * whole)
    else:
        nbytes = max(0, copied_bytes(question, taken, unit) + round(rest * plain[1]))
    least, most = round(low * whole), round(high * whole)
    if whole < SMALL:
        least, most = 0, min(most_kib * KIB, max(PARTS * whole, transforms(question)))
    if whole < SMALL or least == most:
        least, most = 0, max(most, nbytes + COPIES * whole)
    return Guess(nbytes, min(nbytes, least), max(nbytes, most))


def copied_bytes(question: Question, taken: int, unit: int) -> int:
    """Return the bytes of copies of tensors, the bits of ``taken``, or of Winograd's transforms."""
    if taken < TRANSFORMS:
        return sum(part for part, bit in zip(tensor_bytes(question, unit), (1, 2, 4)) if taken & bit)
    outer, inner = question.w[:2]
    if taken == WINOGRAD_WEIGHTS:
        return 5 * 5 * outer * inner * _FP32
    tiles = question.x[0] * prod(-(-size // 4) for size in question.y[2:])
    return 6 * 6 * (outer * inner + (question.x[1] + outer) * tiles) * _FP32


def tensor_bytes(question: Question, unit: int) -> tuple[int, int, int]:
    """Return the bytes of x, w and y with each group's channels padded to a multiple of ``unit``."""
    item, groups = ITEM[question.dtype], question.x[1] // question.w[1]
    inner, outer = round_up(question.w[1], unit), round_up(question.w[0] // groups, unit)
    x = question.x[0] * groups * inner * prod(question.x[2:])
    w = groups * outer * inner * prod(question.w[2:])
    y = question.y[0] * groups * outer * prod(question.y[2:])
    return x * item, w * item, y * item


def transforms(question: Question) -> int:
    """Return an upper bound of the bytes of the Fourier transforms of a convolution's tensors; 0 if cuDNN has none.

    cuDNN transforms two-dimensional convolutions of one group without stride and dilation (its documentation of
    CUDNN_CONVOLUTION_FWD_ALGO_FFT and _FFT_TILING), in squares whose side is a power of two. A square of complex
    numbers has half as many columns, and there are two copies of each.
    """
    steps = (*question.stride, *question.dilation)
    taps = prod(question.w[2:])
    if max(steps) > 1 or taps == 1 or question.x[1] != question.w[1] or len(question.x) != 4:
        return 0
    side = _padded_side(question)
    return _spectra(question, TILE, _tiles(question)) if side > LONGEST else _spectra(question, side)


def trials_bytes(question: Question) -> int:
    """Return an upper bound of the bytes in which ``cudnn.benchmark`` tries all plans of a convolution.

    Among them are plans that cuDNN's heuristics rarely put first: Fourier transforms, as a whole or in tiles, in up to
    four copies, but not of dilated or depthwise convolutions, long strides or products in float16; besides, copies of
    the tensors and Winograd's transforms. All of 4,278 recorded workspaces are within it
    (``benchmarks/cuda/cudnn_table.py --trials``).
    """
    others = COPIES * sum(tensor_bytes(question, TRIALS_UNIT)) + copied_bytes(question, WINOGRAD, 1)
    is_depthwise = question.w[1] == 1 < question.x[1]
    is_long = max(question.stride) > 2 and question.kind is Kind.FORWARD
    is_half_product = ITEM[question.dtype] < _FP32 and prod(question.w[2:]) == 1
    is_product = is_half_product and question.kind is not Kind.BACKWARD_FILTER
    if max(question.dilation) > 1 or is_depthwise or is_long or is_product:
        return 4 * others
    unit = TRIALS_UNIT if question.x[1] == question.w[1] else 1
    spectra = _spectra(question, max(LEAST_SIDE, _padded_side(question)), unit=unit)
    if max(question.w[2:]) <= TILE // 2:
        spectra = max(spectra, _spectra(question, TILE, _tiles(question), unit))
    return 2 * spectra + 2 * others


def _padded_side(question: Question) -> int:
    """Return the power of two to which the sides of an image are padded."""
    side = max(size + 2 * pad for size, pad in zip(question.x[2:], question.padding))
    return 1 << (side - 1).bit_length()


def _tiles(question: Question) -> int:
    """Return the number of tiles whose results cover an image."""
    return prod(-(-size // max(1, TILE - taps + 1)) for size, taps in zip(question.y[2:], question.w[2:]))


def _spectra(question: Question, side: int, tiles: int = 1, unit: int = 1) -> int:
    """Return the bytes of two copies of the Fourier transforms of a convolution's tensors, in ``tiles`` of a side."""
    groups = question.x[1] // question.w[1]
    inner, outer = round_up(question.w[1], unit), round_up(question.w[0] // groups, unit)
    planes = groups * (inner * outer + (question.x[0] * inner + question.y[0] * outer) * tiles)
    plane: int = side ** (len(question.x) - 3) * (side // 2 + 1)
    return 2 * planes * plane * _COMPLEX


def features(question: Question) -> tuple[float, ...]:
    """Return the trees' features: batch, channels, sizes, kernel, stride, groups and work, mostly as logarithms."""
    groups = question.x[1] // question.w[1]
    outer, inner = question.w[0] // groups, question.w[1]
    pixels, taps = prod(question.y[2:]), prod(question.w[2:])
    work = inner * outer * taps * groups
    odd = [float(sum(channels % unit != 0 for unit in (8, 4, 2))) for channels in (inner, outer)]
    return (
        *(log2(question.x[0]), log2(inner), log2(outer), log2(pixels), log2(taps), max(question.stride), log2(groups)),
        *(max(question.dilation), log2(question.x[0] * pixels), log2(inner * taps), log2(work), *odd),
        *(len(question.stride), log2(question.x[2]), log2(question.x[-1]), log2(prod(question.x[2:]))),
        *(log2(question.x[0] * pixels * work), log2(question.x[0] * pixels * outer), log2(pixels * taps)),
        question.padding[-1] / question.w[-1],
    )


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table
