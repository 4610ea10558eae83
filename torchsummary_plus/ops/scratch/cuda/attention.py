"""Scratch memory of CUDA's fused attention kernels, from torch's sources."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ....data.capability import Capability
from ....data.rounding import ceil_div, round_up
from ....live.versions import since
from ...dtypes import HALVES
from ..registry import UNKNOWN, Alloc, AtMost, Course, Free, Result, at_peak, reserve, scratch
from ..sizes import nbytes
from .allocations import buffers, results
from .attention_choice import requires_determinism
from .chips import LITTLE_SHARED_MEMORY, chip_of

FLASH = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd; attention_backward.cu"
SPLITTING = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd, num_splits_heuristic"
FORWARD = "aten/src/ATen/native/transformers/cuda/attention.cu, _efficient_attention_forward"
EFFICIENT = (
    "aten/src/ATen/native/transformers/cuda/attention_backward.cu, _efficient_attention_backward;"
    " mem_eff_attention/kernel_backward.h, workspace_size; kernels/cutlassB.h for the order of the kernels"
)
CUDNN = "aten/src/ATen/native/cudnn/MHA.cpp asks the graph for its workspace; assumed to be that of flash attention"


def _is_turned(tensor: Any) -> bool:
    """Whether a tensor is contiguous with rows before heads, as the kernels read it."""
    step = 1
    for axis in (3, 1, 2, 0):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != step:
            return False
        step *= tensor.shape[axis]
    return True


@scratch("cuda", "aten::_scaled_dot_product_flash_attention", source=SPLITTING, band=0.0, by_capability=True)
def flash(
    capability: Capability, out: Any, query: Any, key: Any, value: Any, dropout: float = 0.0, *_: Any, **__: Any
) -> Course:
    """With dropout a second copy of the random state; without, a short batch has a share of the output per split.

    A single row of grouped queries runs as one row per query of a group.
    """
    if dropout:
        return at_peak(16)
    batch, heads, rows, width = query.shape
    if rows == 1 and heads > key.shape[1]:
        heads, rows = key.shape[1], heads // key.shape[1]
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    splits = _splits(
        batch * heads * ceil_div(rows, 64), 2 * chip_of(capability).multiprocessors, ceil_div(key.shape[2], block)
    )
    if splits == 1:
        return ()
    sums = 4 * splits * batch * heads * rows
    first, second, *rest = results(out)
    return first, second, Alloc(sums), Alloc(sums * _rounded(width)), *rest


def _splits(blocks: int, room: int, most: int) -> int:
    """Return how many ways the keys are split: the fewest that fill the GPU nearly as well as the best number.

    ``room`` is the number of thread blocks that it runs at once; ``most`` blocks of keys are there.
    """
    if blocks >= 0.8 * room:
        return 1
    eligible = [n for n in range(1, min(128, room, most) + 1) if n == 1 or ceil_div(most, n) != ceil_div(most, n - 1)]
    filled = {n: blocks * n / room / ceil_div(blocks * n, room) for n in eligible}
    return next(n for n in eligible if filled[n] >= 0.85 * max(filled.values()))


def _rounded(width: int) -> int:
    return round_up(width, 32 if width <= 128 else 64)


@scratch("cuda", "aten::_scaled_dot_product_flash_attention_backward", source=FLASH, band=0.0)
def flash_backward(out: Any, grad: Any, query: Any, key: Any, value: Any, output: Any, *_: Any, **__: Any) -> Course:
    """One number per row, the queries' gradient in fp32, and with grouped heads each head's share of key and value.

    Rows are rounded up to 128, head sizes up to 128 to 32 and larger ones to 64. Copies of non-contiguous tensors come
    before the results.
    """
    batch, heads, rows, width = query.shape
    wide = _rounded(width)
    tall = round_up(rows, 128)
    copies = tuple(Alloc(nbytes(tensor)) for tensor in (grad, output) if not _is_turned(tensor))
    sums = Alloc(batch * heads * tall * 4), Alloc(batch * heads * tall * wide * 4)
    shares: tuple[Alloc, ...] = ()
    if key.shape[1] != heads:
        shares = (Alloc(batch * key.shape[2] * heads * width * key.element_size()),) * 2
    return (*copies, Result(0), Result(1), Result(2), *sums, *shares)


STATE = 256
"""Workspace bytes of a graph that do not depend on the shapes."""


@reserve("cuda", "aten::_scaled_dot_product_cudnn_attention", source=CUDNN, band=0.0)
def cudnn_results(
    out: Any, query: Any, key: Any, value: Any, mask: Any, keeps: bool, *_: Any, **__: Any
) -> tuple[int | None, ...]:
    """Without a backward, one sum per row is not kept."""
    return (None, None if keeps else 0)


@scratch("cuda", "aten::_scaled_dot_product_cudnn_attention", source=CUDNN, band=0.5, calibrated=False)
def cudnn(out: Any, *_: Any, **__: Any) -> Course:
    """Seed and offset are allocated first."""
    output, logsumexp, *state = results(out)
    return *state, output, logsumexp, Alloc(STATE)


@scratch("cuda", "aten::_scaled_dot_product_cudnn_attention_backward", source=CUDNN, band=0.5, calibrated=False)
def cudnn_backward(out: Any, grad: Any, query: Any, key: Any, *_: Any, **__: Any) -> Course:
    """The queries' gradient in fp32 and one number per row; grouped heads as in flash attention."""
    batch, heads, rows, width = query.shape
    gradient: int = batch * heads * rows * (4 * width + 4)
    grouped: int = 2 * batch * key.shape[2] * heads * width * key.element_size()
    return (Alloc(gradient + (0 if key.shape[1] == heads else grouped) + STATE),)


@reserve("cuda", "aten::_scaled_dot_product_efficient_attention", source=FORWARD, band=0.0)
def efficient_results(
    out: Any, query: Any, key: Any, value: Any, bias: Any, trains: bool, dropout: float = 0.0, *_: Any, **__: Any
) -> tuple[int | None, ...]:
    """Seed and offset of the random state are on the CPU; without dropout, from torch 2.14 on, on the GPU."""
    return () if _seeds_on_gpu(dropout) else (None, None, 0, 0)


def _seeds_on_gpu(dropout: float) -> bool:
    return since("2.14") and not dropout


WIDEST_IN_REGISTERS = 128
"""Widest value row accumulated in registers; wider ones accumulate in memory."""


@scratch("cuda", "aten::_scaled_dot_product_efficient_attention", source=FORWARD, band=0.0)
def efficient(
    out: Any, query: Any, key: Any, value: Any, bias: Any, trains: bool, dropout: float = 0.0, *_: Any, **__: Any
) -> Course:
    """The output in fp32, if its dtype is another and its rows are too wide for registers; seeds come first."""
    is_kept = value.shape[-1] <= WIDEST_IN_REGISTERS or out[0].element_size() == 4
    accumulated = 0 if is_kept else 4 * out[0].numel()
    if not _seeds_on_gpu(dropout):
        return at_peak(accumulated)
    return *map(Result, (2, 3, 0, 1)), *buffers(accumulated)


MOST_BATCHES = (1 << 16) - 1
"""Largest batch of a launch; larger ones are split."""


@scratch(
    "cuda", "aten::_scaled_dot_product_efficient_attention_backward", source=EFFICIENT, band=0.0, by_capability=True
)
def efficient_backward(
    capability: Capability, out: Any, grad: Any, query: Any, key: Any, value: Any, bias: Any, output: Any,
    logsumexp: Any, seed: Any, offset: Any, dropout: float = 0.0, *_: Any, **__: Any,
) -> Course | AtMost:  # fmt: skip
    """One number per row, and fp32 tiles in which the gradients accumulate.

    fp32 kernels do not compute the row sums themselves, so the full products precede them. Grouped heads have
    gradients of their own first, which are then added up.
    """
    batch, heads, rows, width = query.shape
    if batch > MOST_BATCHES:
        return UNKNOWN
    widest = max(width, value.shape[-1])
    tile, keys, limit = _tile(capability, query.dtype, widest, bool(dropout))
    half = query.element_size() == 2
    copies = () if _is_turned(grad) else (Alloc(nbytes(grad)),)
    spread = () if key.shape[1] == heads else tuple(Alloc(heads // t.shape[1] * nbytes(t)) for t in (key, value))
    steps: list[Alloc | Result | Free] = [*copies, *results(out), *spread]
    in_registers = half and limit <= tile
    if half and (in_registers or not (7, 0) <= capability < (7, 5)):
        steps.append(Alloc(4 * batch * heads * rows))
    else:
        steps += _row_sums(len(copies) + len(spread), grad, output)
    columns = key.shape[2]
    splits = ceil_div(columns, keys)
    summed = half and not in_registers
    if splits * batch * heads >= 256 and columns <= 2 * keys:
        splits = 1
    if summed:
        splits = min(splits, 200 // (batch * heads))
    splits = max(1, splits) if capability >= (7, 0) and not requires_determinism() else 1
    shares = splits * keys * (round_up(width, tile) + round_up(value.shape[-1], tile)) if summed else 0
    queries = ceil_div(rows, tile) * ceil_div(width, keys) * (tile * keys + 4) if half or capability >= (7, 0) else 0
    return (*steps, Alloc(4 * batch * heads * round_up(shares + queries, 4)))


def _row_sums(first: int, grad: Any, output: Any) -> list[Alloc | Free]:
    """The fp32 products of gradient and output, in half precision preceded by fp32 copies; transposed sums.

    One head or one row needs no copy to be transposed.
    """
    batch, heads, rows, _ = grad.shape
    whole, sums = Alloc(4 * prod(grad.shape)), Alloc(4 * batch * heads * rows)
    singles = [whole] * (2 if grad.element_size() == 2 else 0)
    product = first + len(singles)
    is_copied = heads > 1 and rows > 1
    freed = [Free(buffer) for buffer in range(product + is_copied, first - 1, -1)]
    return [*singles, whole, sums, *([sums] if is_copied else []), *freed]


def _tile(capability: Capability, dtype: torch.dtype, widest: int, dropout: bool) -> tuple[int, int, int]:
    """Return the queries and keys per tile of the first kernel that can run, and the widest head it supports.

    99 KiB of shared memory are too little for fp32 tiles of 128 queries, and for halves' of 128 queries and 128 keys.
    """
    limit = next(limit for limit in (32, 64, 128, 1 << 16) if widest <= limit)
    is_little = capability in LITTLE_SHARED_MEMORY
    if limit <= 64 or capability < (7, 0):
        return 64, 64, limit
    if dtype not in HALVES:
        return 64 if is_little or capability < (8, 0) else 128, 64, limit
    if capability in ((8, 6), (8, 9)) and widest <= 96 and not dropout:
        return 128, 64, 96
    if limit > 128 or capability < (8, 0):
        return 128, 64, limit
    return (64, 64, limit) if is_little else (128, 128, limit)
