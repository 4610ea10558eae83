"""CUDA: staging buffers of batch norm without cuDNN, in channels last, also with statistics from all ranks.

Source: aten/src/ATen/native/cuda/Normalization.cuh, ``flexible_launch_configs``,
``batch_norm_stats_channels_last_cuda_template`` and ``batch_norm_backward_reduce_cuda_channels_last_template``. Where
several rows of thread blocks share a channel they add up in a buffer, with a semaphore for each column of blocks.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..cpu.copies import nbytes
from ..registry import Phase, scratch

SOURCE = "aten/src/ATen/native/cuda/Normalization.cuh"

THREADS, TILE, EACH, MOST_ROWS, FEWEST_ROWS = 512, 32, 16, 128, 8
"""Threads of a block, channels of a tile, elements of a thread, and how many rows of blocks share a channel."""


@scratch("cuda", "aten::batch_norm_stats", source=SOURCE, band=0.0)
def batch_norm_stats(out: Any, x: Tensor, eps: float) -> tuple[Phase, ...]:
    """Four values for each channel and row of blocks."""
    return _staged(x, out[0], 4, 2)


@scratch("cuda", "aten::native_batch_norm", source=SOURCE, band=0.0)
def native_batch_norm(
    out: Any, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> tuple[Phase, ...]:
    """In training, the statistics of rows of channels; with weights cuDNN runs, which builds for the CPU lack."""
    return _staged(x, out[1], 4, 3) if training and weight is None and x.numel() else ()


@scratch("cuda", "aten::native_batch_norm_backward", source=SOURCE, band=0.0)
def native_batch_norm_backward(
    out: Any, grad: Tensor, x: Tensor, weight: Any, mean: Any, var: Any, mu: Any, rstd: Any, training: bool, *_: Any
) -> tuple[Phase, ...]:
    """In training, for rows of channels two sums each, with their staging buffers, ahead of the input's gradient."""
    if not training or weight is not None or x.stride(1) != 1 or not x.numel():
        return ()
    sums = (("sum", nbytes(mu)), ("product", nbytes(mu)))
    parts = tuple(Phase(0, 0, blocks=(*sums, *phase.blocks)) for phase in _staged(x, mu, 2, 0))
    return *parts, Phase(3, 0, blocks=sums)


@scratch("cuda", "aten::batch_norm_backward_reduce", source=SOURCE, band=0.0)
def batch_norm_backward_reduce(out: Any, grad: Tensor, x: Tensor, mean: Tensor, *_: Any) -> tuple[Phase, ...]:
    """Two values for each channel and row of blocks."""
    return _staged(x, mean, 2, sum(one is not None for one in out))


@scratch(
    "cuda", "aten::batch_norm_gather_stats_with_counts", "aten::batch_norm_elemt", "aten::batch_norm_backward_elemt",
    source=SOURCE, band=0.0,
)  # fmt: skip
def nothing(out: Any, *_: Any) -> int:
    """One kernel each, without a buffer."""
    return 0


def _staged(x: Tensor, statistics: Tensor, values: int, results: int) -> tuple[Phase, ...]:
    """Return the phase of a kernel that reduces all axes but the channels."""
    columns, rows = blocks(x.numel() // x.shape[1], x.shape[1]) if x.stride(1) == 1 and x.numel() else (1, 1)
    if rows == 1:
        return (Phase(results, 0),)
    staging = values * x.shape[1] * rows * statistics.element_size()
    return (Phase(results, 0, blocks=(("staging", staging), ("semaphores", 4 * columns))),)


def blocks(reduced: int, channels: int) -> tuple[int, int]:
    """Return the columns and rows of thread blocks that reduce so many elements of each channel.

    >>> blocks(4096, 64)
    (2, 16)
    """
    wide = min(_power_of_two(channels), TILE)
    high = min(_power_of_two(-(-reduced // EACH)), THREADS // wide)
    if wide * high != THREADS:
        wide = min(_power_of_two(channels), THREADS // high)
    rows = min(-(-reduced // (high * EACH)), MOST_ROWS)
    return -(-channels // wide), rows if rows >= FEWEST_ROWS else 1


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number."""
    return int(1 << number.bit_length() - 1)
