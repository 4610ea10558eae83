"""The scratch in which oneDNN's threads sum up their shares of the gradient of a convolution's weights."""

from __future__ import annotations

from math import prod

from .onednn import Conv, booked, ceil_div, lanes, threads, up

GEMM_LIMIT = 1 << 30
"""Scratch that a kernel by matrix products never exceeds ..."""
GEMM_SHARE = 15
"""... nor does it exceed so many times the bytes of its tensors, for each thread (``gemm_convolution_utils.cpp``)."""


def gemm_for_data(conv: Conv, columns: int) -> int:
    """The columns of one image for each thread, or of a tenth of what fits under the limit."""
    return _gemm_columns(conv, columns, 1, 0, 0.1)


def gemm_for_weights(conv: Conv, columns: int) -> int:
    """The same, and sums for each thread: the kernel takes the bytes of the weights for their number.

    All threads share in where an image is small and there are several, or several groups.
    """
    workers = threads()
    if prod(conv.out[-2:]) // workers >= 256 or (conv.batch == 1 and conv.groups <= 2):
        workers = 1
    sums = booked(4 * conv.weights * workers)
    return sums + _gemm_columns(conv, columns, workers, sums, 0.05)


def _gemm_columns(conv: Conv, columns: int, workers: int, taken: int, share: float) -> int:
    room = min(GEMM_LIMIT, GEMM_SHARE * threads() * (conv.read + conv.weights + conv.written)) - taken
    if room >= columns * workers:
        return booked(columns * workers)
    column = columns // prod(conv.out[-2:])
    at_once = max(lanes()[0], int(room // (workers * column) * share))
    return booked(column * at_once * workers)


def depthwise_reduction(conv: Conv, wide: int) -> int:
    blocks = ceil_div(conv.groups, wide)
    shares = min(max(1, threads() // min(blocks, threads())), conv.batch) - 1
    size = up(conv.groups, wide) * 4
    bias = booked(size * shares) if conv.bias else 0
    return booked(size * prod(conv.kernel) * shares) + bias


def blocks_at_once(conv: Conv, wide: int) -> int:
    blocks = ceil_div(conv.ic, wide)
    if wide == 8:
        while blocks > 9:
            if blocks % 2 == 0:
                blocks //= 2
            elif blocks % 3 == 0:
                blocks //= 3
            else:
                break
        return blocks
    return blocks


def pointwise_reduction(conv: Conv, wide: int) -> int:
    return 0


def direct_reduction(conv: Conv, wide: int) -> int:
    return 0
