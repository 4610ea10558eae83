"""CUDA: which kernel torch chooses for ``scaled_dot_product_attention``, and the scratch memory of each.

Sources, in aten/src/ATen/native/transformers/cuda: of the choice sdp_utils.cpp, ``select_sdp_backend`` and its three
``can_use_*`` checks, and sdp_utils_cpp.h; of the memory flash_attn/flash_api.cpp, ``mha_fwd``,
``num_splits_heuristic`` and ``mha_bwd``; attention.cu; attention_backward.cu, mem_eff_attention/kernel_backward.h,
``workspace_size``, and kernels/cutlassB.h for the order of the kernels. cuDNN asks its graph for the workspace, which
is assumed to be that of flash attention. Differences between releases are marked by ``since``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ....data.capability import Capability, Chip
from ....data.units import ceil_div, round_up
from ....live.compat import since
from ...backends import HALVES
from ..allocations import buffers, results
from ..registry import GUESS, UNKNOWN, Alloc, AtMost, Free, Result, Timeline, scratch

MOST_BATCHES = (1 << 16) - 1
"""Largest batch of a launch; larger ones are split."""
WIDEST_IN_REGISTERS = 128
"""Widest value row accumulated in registers; wider ones accumulate in memory."""
STATE = 256
"""Workspace bytes of a graph that do not depend on the shapes."""
LITTLE_SHARED_MEMORY = frozenset({(8, 6), (8, 9), (12, 0), (12, 1)})
"""Capabilities with 99 KiB of shared memory per block, less than that of data-centre GPUs of their generation."""


def _is_turned(tensor: Any) -> bool:
    """Whether a tensor is contiguous with rows before heads, as the kernels read it."""
    step = 1
    for axis in (3, 1, 2, 0):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != step:
            return False
        step *= tensor.shape[axis]
    return True


@scratch("cuda", "aten::_scaled_dot_product_flash_attention")
def flash(chip: Chip, out: Any, query: Any, key: Any, value: Any, dropout: float = 0.0, *_: Any, **__: Any) -> Timeline:
    """With dropout a second copy of the random state; without, a short batch has a share of the output per split.

    A single row of grouped queries runs as one row per query of a group. The keys are split in the fewest ways that
    fill the GPU nearly as well as the best number.
    """
    if dropout:
        return (Alloc(16),)
    batch, heads, rows, width = query.shape
    if rows == 1 and heads > key.shape[1]:
        heads, rows = key.shape[1], heads // key.shape[1]
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    blocks, room, most = batch * heads * ceil_div(rows, 64), 2 * chip.multiprocessors, ceil_div(key.shape[2], block)
    if blocks >= 0.8 * room:
        return ()
    eligible = [n for n in range(1, min(128, room, most) + 1) if n == 1 or ceil_div(most, n) != ceil_div(most, n - 1)]
    filled = {n: blocks * n / room / ceil_div(blocks * n, room) for n in eligible}
    splits = next(n for n in eligible if filled[n] >= 0.85 * max(filled.values()))
    if splits == 1:
        return ()
    sums = 4 * splits * batch * heads * rows
    first, second, *rest = results(out)
    return first, second, Alloc(sums), Alloc(sums * _rounded(width)), *rest


def _rounded(width: int) -> int:
    return round_up(width, 32 if width <= 128 else 64)


@scratch("cuda", "aten::_scaled_dot_product_flash_attention_backward")
def flash_backward(out: Any, grad: Any, query: Any, key: Any, value: Any, output: Any, *_: Any, **__: Any) -> Timeline:
    """One number per row, the queries' gradient in fp32, and with grouped heads each head's share of key and value.

    Rows are rounded up to 128, head sizes up to 128 to 32 and larger ones to 64. Copies of non-contiguous tensors come
    before the results.
    """
    batch, heads, rows, width = query.shape
    wide = _rounded(width)
    tall = round_up(rows, 128)
    copies = tuple(Alloc(tensor.nbytes) for tensor in (grad, output) if not _is_turned(tensor))
    sums = Alloc(batch * heads * tall * 4), Alloc(batch * heads * tall * wide * 4)
    shares: tuple[Alloc, ...] = ()
    if key.shape[1] != heads:
        shares = (Alloc(batch * key.shape[2] * heads * width * key.element_size()),) * 2
    return (*copies, Result(0), Result(1), Result(2), *sums, *shares)


@scratch("cuda", "aten::_scaled_dot_product_cudnn_attention", band=GUESS)
def cudnn(out: Any, query: Any, key: Any, value: Any, mask: Any, keeps: bool, *_: Any, **__: Any) -> Timeline:
    """Seed and offset are allocated first; without a backward, one sum per row is not kept."""
    output, _sums, *state = results(out)
    return *state, output, Result(1, None if keeps else 0), Alloc(STATE, GUESS)


@scratch("cuda", "aten::_scaled_dot_product_cudnn_attention_backward", band=GUESS)
def cudnn_backward(out: Any, grad: Any, query: Any, key: Any, *_: Any, **__: Any) -> Timeline:
    """The queries' gradient in fp32 and one number per row; grouped heads as in flash attention."""
    batch, heads, rows, width = query.shape
    gradient: int = batch * heads * rows * (4 * width + 4)
    grouped: int = 2 * batch * key.shape[2] * heads * width * key.element_size()
    return (Alloc(gradient + (0 if key.shape[1] == heads else grouped) + STATE, GUESS),)


def _seeds_on_gpu(dropout: float) -> bool:
    return since("2.14") and not dropout


@scratch("cuda", "aten::_scaled_dot_product_efficient_attention")
def efficient(
    out: Any, query: Any, key: Any, value: Any, bias: Any, trains: bool, dropout: float = 0.0, *_: Any, **__: Any
) -> Timeline:
    """The output in fp32, if its dtype is another and its rows are too wide for registers.

    Seed and offset of the random state are on the CPU, or come first.
    """
    is_kept = value.shape[-1] <= WIDEST_IN_REGISTERS or out[0].element_size() == 4
    accumulated = 0 if is_kept else 4 * out[0].numel()
    if _seeds_on_gpu(dropout):
        return *map(Result, (2, 3, 0, 1)), *buffers(accumulated)
    return Result(0), Result(1), Result(2, 0), Result(3, 0), *buffers(accumulated)


@scratch("cuda", "aten::_scaled_dot_product_efficient_attention_backward")
def efficient_backward(
    chip: Chip, out: Any, grad: Any, query: Any, key: Any, value: Any, bias: Any, output: Any,
    logsumexp: Any, seed: Any, offset: Any, dropout: float = 0.0, *_: Any, **__: Any,
) -> Timeline | AtMost:  # fmt: skip
    """One number per row, and fp32 tiles in which the gradients accumulate.

    fp32 kernels do not compute the row sums themselves, so the full products precede them. Grouped heads have
    gradients of their own first, which are then added up.
    """
    batch, heads, rows, width = query.shape
    if batch > MOST_BATCHES:
        return UNKNOWN
    widest = max(width, value.shape[-1])
    tile, keys, limit = _tile(chip, query.dtype, widest, bool(dropout))
    half = query.element_size() == 2
    copies = () if _is_turned(grad) else (Alloc(grad.nbytes),)
    spread = () if key.shape[1] == heads else tuple(Alloc(heads // t.shape[1] * t.nbytes) for t in (key, value))
    steps: list[Alloc | Result | Free] = [*copies, *results(out), *spread]
    in_registers = half and limit <= tile
    if half and (in_registers or not (7, 0) <= chip < (7, 5)):
        steps.append(Alloc(4 * batch * heads * rows))
    else:
        # fp32 products of gradient and output, in half precision of copies, and their sums; one head or row needs no
        # copy to be transposed.
        first, whole, sums = len(copies) + len(spread), Alloc(4 * prod(grad.shape)), Alloc(4 * batch * heads * rows)
        products, sums_twice = [whole] * (3 if half else 1), [sums] * (2 if heads > 1 and rows > 1 else 1)
        freed = range(first + len(products) + len(sums_twice) - 2, first - 1, -1)
        steps += [*products, *sums_twice, *map(Free, freed)]
    columns = key.shape[2]
    splits = ceil_div(columns, keys)
    summed = half and not in_registers
    if splits * batch * heads >= 256 and columns <= 2 * keys:
        splits = 1
    if summed:
        splits = min(splits, 200 // (batch * heads))
    splits = max(1, splits) if chip >= (7, 0) and not requires_determinism() else 1
    shares = splits * keys * (round_up(width, tile) + round_up(value.shape[-1], tile)) if summed else 0
    queries = ceil_div(rows, tile) * ceil_div(width, keys) * (tile * keys + 4) if half or chip >= (7, 0) else 0
    return (*steps, Alloc(4 * batch * heads * round_up(shares + queries, 4)))


def _tile(chip: Chip, dtype: torch.dtype, widest: int, dropout: bool) -> tuple[int, int, int]:
    """Return the queries and keys per tile of the first kernel that can run, and the widest head it supports.

    99 KiB of shared memory are too little for fp32 tiles of 128 queries, and for halves' of 128 queries and 128 keys.
    """
    limit = next(limit for limit in (32, 64, 128, 1 << 16) if widest <= limit)
    is_little = chip in LITTLE_SHARED_MEMORY
    if limit <= 64 or chip < (7, 0):
        return 64, 64, limit
    if dtype not in HALVES:
        return 64 if is_little or chip < (8, 0) else 128, 64, limit
    if chip in ((8, 6), (8, 9)) and widest <= 96 and not dropout:
        return 128, 64, 96
    if limit > 128 or chip < (8, 0):
        return 128, 64, limit
    return (64, 64, limit) if is_little else (128, 128, limit)


GROUPED_IN_EFFICIENT = since("2.14")
"""Whether the memory-efficient kernel supports grouped-query attention."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The properties of an attention call that decide its kernel."""

    query: Any
    key: Any
    value: Any
    mask: Any = None
    dropout: float = 0.0
    is_causal: bool = False
    is_grouped: bool = False

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def trains(self) -> bool:
        """Whether a gradient is needed, other than the mask's."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors)

    @property
    def trains_mask(self) -> bool:
        """Whether the mask needs a gradient."""
        return self.mask is not None and torch.is_grad_enabled() and bool(self.mask.requires_grad)

    def has_heads(self, grouped: bool) -> bool:
        """Whether batches and heads match, or with ``grouped`` each key head serves a whole group of query heads."""
        batches = [tensor.shape[0] for tensor in self.tensors]
        heads, keys, values = (tensor.shape[1] for tensor in self.tensors)
        if any(batch != batches[0] for batch in batches):  # A symbolic size has no hash.
            return False
        if not self.is_grouped:
            return bool(heads == keys == values)
        return bool(grouped and keys == values and heads % keys == 0)

    def has_rows(self, but_single: bool) -> bool:
        """Whether each row is contiguous; with ``but_single``, a row of one element may have any stride."""
        tensors = [*self.tensors, *(() if self.mask is None else (self.mask,))]
        return all(t.stride(-1) == 1 or (but_single and t.shape[-1] == 1) for t in tensors)


def attention_kernel(capability: Capability, call: Attention) -> str:
    """Return "cudnn", "flash", "efficient" or "math"; cuDNN comes first only on data-centre Hopper and Blackwell."""
    if any(tensor.dim() != 4 or 0 in tensor.shape for tensor in call.tensors):
        return "math"
    first_on = ((9, 0), (10, 0)) if since("2.9") else ()
    prefers_cudnn = capability in first_on and not os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED")
    checks = {
        "flash": _is_for_flash,
        "efficient": _is_for_efficient,
        "math": lambda *_: torch.backends.cuda.math_sdp_enabled(),
        "cudnn": _is_for_cudnn,
    }
    order = ("cudnn", *(name for name in checks if name != "cudnn")) if prefers_cudnn else tuple(checks)
    return next((name for name in order if checks[name](capability, call)), "math")


def _is_half(capability: Capability, call: Attention) -> bool:
    """Whether all tensors share one half-precision dtype that the GPU supports."""
    dtype = call.query.dtype
    same = call.key.dtype == call.value.dtype == dtype
    return bool(same) and (dtype is torch.float16 or (dtype is torch.bfloat16 and capability >= (8, 0)))


def requires_determinism() -> bool:
    """Whether torch raises an error for algorithms that are not deterministic, and so avoids them."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def _is_for_cudnn(capability: Capability, call: Attention) -> bool:
    if not torch.backends.cuda.cudnn_sdp_enabled() or call.trains_mask or requires_determinism():
        return False
    width, wide = call.query.shape[-1], call.value.shape[-1]
    widest = 256 if capability == (9, 0) else 128
    return bool(
        (capability >= (8, 0) and (call.dropout * 16 % 1 == 0 or not since("2.12")))
        and (_is_half(capability, call) and call.has_heads(grouped=True) and call.has_rows(but_single=True))
        and min(call.query.shape[2], call.key.shape[2]) > 1
        and (width % 8 == wide % 8 == 0 and max(width, wide) <= widest)
    )


def _is_for_flash(capability: Capability, call: Attention) -> bool:
    if not torch.backends.cuda.flash_sdp_enabled():
        return False
    width, rows, columns = call.query.shape[-1], call.query.shape[2], call.key.shape[2]
    # Then the backward needs more shared memory than a consumer GPU has.
    is_wide = 192 < width <= 224 or (width > 224 and call.dropout > 0.0)
    return bool(
        (call.mask is None and capability >= (8, 0) and _is_half(capability, call))
        and (width == call.key.shape[-1] == call.value.shape[-1] <= 256)
        and not (call.is_causal and rows != columns)
        and call.has_heads(grouped=True)
        and call.has_rows(but_single=True)
        and not (call.trains and capability in LITTLE_SHARED_MEMORY and is_wide)
    )


def _is_for_efficient(capability: Capability, call: Attention) -> bool:
    if not torch.backends.cuda.mem_efficient_sdp_enabled():
        return False
    single = call.query.dtype is call.key.dtype is call.value.dtype is torch.float32
    half = call.query.dtype in HALVES
    cores = capability >= (8, 0) or (capability >= (7, 0) and half)
    alignment = max(4 if capability >= (8, 0) else 1, (8 if half else 4) if cores else 1)
    width, wide = call.query.shape[-1], call.value.shape[-1]
    return bool(
        (single or _is_half(capability, call))
        and (width == call.key.shape[-1] and width % alignment == wide % alignment == 0)
        and call.has_heads(grouped=GROUPED_IN_EFFICIENT)
        and call.has_rows(but_single=False)
    )
