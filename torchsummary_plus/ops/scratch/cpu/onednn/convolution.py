"""Which kernel oneDNN runs for a float32 convolution in the default layout, with its blocked layouts and scratch.

oneDNN walks a list of kernels (``cpu_convolution_list.cpp``) from the widest instruction set to the narrowest and takes
the first that applies; each function here mirrors one kernel's ``init_conf``.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .....data.rounding import ceil_div, round_up
from .....live.versions import since
from ....processor import first_cache
from . import threads as shared
from .description import FLOAT, Conv, Plan, aligned, channels_last_plan, lanes
from .strided import is_strided_product, strided_product

CODE_BYTES, INSTRUCTION_BYTES = 256 * 1024, 15
"""Room for generated code, and oneDNN's bound on an instruction (``jit_avx512_common_conv_kernel.cpp``)."""


def forward_plan(conv: Conv) -> Plan:
    """Return the plan of the forward."""
    if len(conv.inp) == 3 and fits_depthwise(conv):
        return channels_last_plan(conv, conv.depthwise_in(lanes()[0]))
    for wide in lanes():
        if _depthwise_forward(conv, wide):
            weights, bias = conv.depthwise_in(wide), _padded_bias(conv, conv.groups, wide)
            return Plan(conv.read_in(wide), weights, conv.written_in(wide), bias)
        if is_pointwise(conv):
            scratch = _padded_bias(conv, conv.oc, wide)
            scratch += _unit_stride(conv, ceil_div(conv.ic, wide), wide, shared.pointwise_forward_workers(conv, wide))
            return _blocked(conv, wide, wide, scratch)
        block = _direct_forward(conv, wide)
        if block:
            few = _takes_few(conv, wide)
            scratch = _padded_bias(conv, conv.oc, block)
            return _blocked(conv, block, 1 if few else block, scratch)
    return Plan(0, 0, conv.written, shared.gemm_for_forward(conv, columns(conv)))


def backward_data(conv: Conv) -> Plan:
    """Return the plan of the input's gradient."""
    product = product_width(conv)
    if product:
        return strided_product(conv, product)
    for wide in lanes():
        if _depthwise_data(conv, wide):
            return Plan(conv.written_in(wide), conv.depthwise_in(wide), conv.read_in(wide))
        if is_pointwise(conv):
            return _turned(_blocked(conv, wide, wide))
        block = direct_data(conv, wide)
        if block:
            return _turned(_blocked(conv, block, block))
    return Plan(0, 0, conv.read, shared.gemm_for_data(conv, columns(conv)))


def product_width(conv: Conv) -> int:
    """Return the lanes of the strided product that computes the input's gradient, 0 if another kernel does."""
    for wide in lanes():
        if is_strided_product(conv, wide):
            return wide
        if _depthwise_data(conv, wide) or is_pointwise(conv) or direct_data(conv, wide):
            return 0
    return 0


def backward_weights(conv: Conv) -> Plan:
    """Return the plan of the weight's gradient."""
    for wide in lanes():
        if fits_depthwise_weights(conv):
            scratch = shared.depthwise_reduction(conv, wide)
            return Plan(conv.written_in(wide), conv.depthwise_in(wide), conv.read_in(wide), scratch)
        if is_pointwise(conv):
            bias = _padded_bias(conv, conv.oc, wide)
            blocks = shared.blocks_at_once(conv, wide)
            scratch = bias + _unit_stride(conv, blocks, wide, shared.pointwise_workers(conv, wide))
            scratch += shared.pointwise_reduction(conv, wide)
            return _turned(_blocked(conv, wide, wide, scratch))
        block = direct_weights(conv, wide)
        if block:
            few = conv.groups == 1 and conv.ic in ((1, 2, 3) if wide == 16 else (3,))
            scratch = _padded_bias(conv, conv.oc, wide) + shared.direct_reduction(conv, wide)
            return _turned(_blocked(conv, block, 1 if few else block, scratch))
    return Plan(0, conv.weights, 0, shared.gemm_for_weights(conv, columns(conv)))


def _blocked(conv: Conv, block: int, in_block: int, scratch: int = 0) -> Plan:
    """Return a plan with blocked channels; ``in_block`` 1 means that an input of few channels is read in place."""
    read = conv.read_in(in_block) if in_block > 1 else 0
    return Plan(read, conv.weights_in(block, in_block), conv.written_in(block), scratch)


def _turned(plan: Plan) -> Plan:
    """Return the same layouts for the backward, which reads what the forward writes."""
    return Plan(plan.written, plan.weights, plan.read, plan.scratch)


def _padded_bias(conv: Conv, channels: int, wide: int) -> int:
    """Return the bytes of a padded copy of the bias, needed unless the channels fill whole blocks."""
    return aligned(conv.itemsize * round_up(channels, wide)) if conv.bias and channels % wide else 0


def columns(conv: Conv) -> int:
    """Return the elements of the columns of one image and group; in 3-d, of one slice."""
    is_pointwise = prod(conv.kernel) == 1 and conv.inp == conv.out and not conv.is_strided
    return 0 if is_pointwise else conv.itemsize * conv.ic * prod(conv.kernel) * prod(conv.out[-2:])


def is_outside(conv: Conv) -> bool:
    """Whether some output element sees only padding."""
    return any(r <= p or r <= e for r, p, e in zip(conv.reach, conv.padding, conv.ends))


def is_pointwise(conv: Conv) -> bool:
    """Whether the 1x1 kernel applies; in 2-d, strides that divide the input are first removed by copying."""
    if conv.groups > 1 or prod(conv.kernel) > 1 or any(conv.padding):
        return False
    if conv.inp == conv.out:
        return not conv.is_strided
    return len(conv.inp) == 2 and all(o * s == i for o, s, i in zip(conv.out, conv.stride, conv.inp))


def _unit_stride(conv: Conv, blocks: int, wide: int, workers: int) -> int:
    """Return the workers' copies of a 1x1 kernel's input without the elements its stride skips (``rtus``)."""
    if not conv.is_strided:
        return 0
    return aligned(workers * blocks * prod(conv.out) * wide * conv.itemsize)


def _takes_few(conv: Conv, wide: int) -> bool:
    """Whether the forward kernel reads an input of few channels in place."""
    return conv.ic < wide and (conv.groups == 1 or wide == 8)


def group_block(conv: Conv, wide: int) -> int:
    """Return the block that divides each group's channels, 0 if there is none; a single group is padded."""
    sizes = (wide, 8, 4) if wide == 16 else (wide,)
    if conv.groups == 1:
        return wide
    return next((size for size in sizes if conv.ic % size == 0 and conv.oc % size == 0), 0)


def fits_depthwise(conv: Conv) -> bool:
    """Whether the channels-last depthwise kernel applies."""
    return conv.is_depthwise and (len(conv.inp) == 2 or not conv.is_dilated)


def _depthwise_forward(conv: Conv, wide: int) -> bool:
    if not conv.is_depthwise or len(conv.inp) != 2 or is_outside(conv):
        return False
    width = min(6 if wide == 16 else 4, conv.out[1])
    tail = conv.out[1] % width
    behind = conv.ends[1] - tail * conv.stride[1]
    return conv.padding[1] <= width and behind <= width


def _depthwise_data(conv: Conv, wide: int) -> bool:
    return conv.is_depthwise and len(conv.inp) == 2 and not conv.is_dilated


def fits_depthwise_weights(conv: Conv) -> bool:
    """Whether the depthwise kernel computes the weight's gradient."""
    if not conv.is_depthwise or len(conv.inp) != 2 or conv.is_dilated:
        return False
    (height, width), (step, across) = conv.kernel, conv.stride
    above, left = conv.padding
    below, right = (max(0, end) for end in conv.ends)
    fits = conv.out[0] == (conv.inp[0] + above + below - height) // step + 1
    fits = fits and conv.out[1] == (conv.inp[1] + left + right - width) // across + 1
    return (
        fits
        and width <= 3
        and across <= width
        and max(above, below) <= height // 2
        and max(left, right) <= width // 2
        and conv.inp[0] >= height + -above % step
        and all(pad <= 1 or pad % step == 0 for pad in (above, below))
    )


def _direct_forward(conv: Conv, wide: int) -> int:
    """Return the channel block of the direct kernel, 0 if it does not apply."""
    if is_outside(conv):
        return 0
    if wide == 16:
        unroll = min(conv.out[-1], 28)
        behind = conv.ends[-1] - conv.out[-1] % unroll * conv.stride[-1]
        if conv.padding[-1] > unroll or behind > unroll:
            return 0
        few = _takes_few(conv, wide)
        block = wide if few else group_block(conv, wide)
        fits = _fits_code(conv, unroll, conv.ic if few else block, conv.padding[-1], behind)
        return block if fits else 0
    few = conv.ic < 8
    if conv.groups > 1 and (conv.oc % 8 or (conv.ic % 8 and not few) or few != (conv.groups * conv.ic < 8)):
        return 0
    across, left = conv.stride[-1], conv.padding[-1]
    if conv.kernel[-1] > 7 and any(conv.padding[-2:]) and conv.stride[-2:] != (1, 1):
        return 0
    unroll = min(3, conv.out[-1])
    if left > unroll:
        return 0
    tail = conv.out[-1] % unroll
    behind = max(0, conv.ends[-1] - tail * across)
    if behind > unroll * across and conv.out[-1] // unroll > 1:
        unroll = min(behind // across + tail, conv.out[-1], 7)
        behind = max(0, conv.ends[-1] - conv.out[-1] % unroll * across)
        if unroll < max(left, behind):
            return 0
    return 8


def direct_data(conv: Conv, wide: int, last: bool = False) -> int:
    """Return the channel block as :func:`direct_weights` does, for the input's gradient."""
    if is_outside(conv) or any(d > 1 and s > 1 for d, s in zip(conv.dilation, conv.stride)):
        return 0
    block = wide if last else group_block(conv, wide)
    if wide == 8:
        same = len(set(conv.stride[-2:])) == 1 and all(s == 1 for s in conv.stride[:-2])
        wasteful = conv.ic < 8 and conv.kernel[-1] > 3 and conv.stride[-1] > 1
        return block if same and not wasteful and _unrolls(conv, ceil_div(conv.ic, 8)) else 0
    return block if block and _unrolls_row(conv, block) else 0


def _unrolls_row(conv: Conv, block: int) -> bool:
    """Whether AVX-512's gradient of the input can unroll a row: whole strides, its padding in one step."""
    width, across, reach, end = conv.inp[-1], conv.stride[-1], conv.reach[-1], conv.ends[-1]
    unroll, together, is_wide = _row_at_once(conv, block)
    tail = width % unroll
    before = max(0, (reach - 1 - conv.padding[-1]) // across)
    behind = max(0, (reach - 1 - max(0, end + tail)) // across)
    if behind * across > unroll or (width > unroll and (unroll % across or end + tail < 0)):
        return False
    fits = before * across <= unroll and _fits_code(conv, unroll * together, block, before, behind)
    return is_wide or fits


def _row_at_once(conv: Conv, block: int) -> tuple[int, int, bool]:
    """Return how much of a row and how many blocks of channels are computed at once, and if the kernel is the row."""
    (height, across), width, blocks = conv.kernel[-2:], conv.inp[-1], ceil_div(conv.ic, block)
    is_wide = 14 <= across < 20 and conv.out[-1] == 1 and blocks > 1 and across == width
    is_wide = is_wide and conv.stride[-1] == 1 and not conv.is_dilated
    touched = FLOAT * block * (2 * width * height + conv.out[-1] + 2 * height * across * block)
    is_tall = any(step > 1 for step in conv.stride[:-1])
    is_short = width <= 5 or 8 < width <= 13 or touched > first_cache()
    if is_wide or not (is_tall or across > 5 or (across == 5 and width >= 8) or (1 < across < 5 and not is_short)):
        together = next(count for count in range(min(2 if is_wide else 4, blocks), 0, -1) if blocks % count == 0)
        return min(width, 31 // (together + 1)), together, is_wide
    is_alone = is_tall or across > 3 or (across == 3 and touched < first_cache() and conv.out[-1] > 8)
    if is_alone or blocks % 2:
        return min(width, 28), 1, False
    return min(width, 10), 2, False


def _fits_code(conv: Conv, unroll: int, block: int, before: int, behind: int) -> bool:
    """Whether AVX-512's unrolled row fits in memory, with copies of it for the padding before and behind, if any."""
    copies = 1 + (before > 0) + (behind > 0)
    return copies * unroll * conv.kernel[-1] * block * INSTRUCTION_BYTES <= CODE_BYTES


def _unrolls(conv: Conv, blocks: int) -> bool:
    """Whether AVX2's 15 free registers suffice for a step along the width that covers the padding at once."""
    across, width, reach = conv.stride[-1], conv.inp[-1], conv.reach[-1]
    before = max(0, (reach - 1 - conv.padding[-1]) // across)
    best, unroll = 0, 0
    for together in range(1, 5):
        for step in range(across, width + across, across):
            if step * together + step // across > 15:
                break
            size = min(step, width)
            work = ceil_div(size, across) * together
            if blocks % together or (before * across > size and size != width):
                continue
            if work > best or (work == best and unroll < size):
                best, unroll = work, size
    if not best:
        return False
    tail = width % unroll
    behind = max(0, (reach - 1 - conv.ends[-1] - tail) // across)
    return not (behind * across > unroll or (width > unroll and (unroll % across or conv.ends[-1] + tail < 0)))


def direct_weights(conv: Conv, wide: int, last: bool = False) -> int:
    """Return the channel block of the direct kernel; in channels-last (``last``) any number of channels works."""
    reach, before, behind = conv.reach, conv.padding, tuple(max(0, end) for end in conv.ends)
    if any(pad >= r for pads in (before, behind) for pad, r in zip(pads, reach)):
        return 0
    if wide == 8:
        deep = any((*before[:-2], *behind[:-2]))
        tall = conv.kernel[-2] > conv.inp[-2] or any(k > i for k, i in zip(conv.kernel[:-2], conv.inp[:-2]))
        rgb_in_groups = last and conv.groups > 1 and conv.groups * conv.ic == 3
        if deep or tall or conv.kernel[-1] >= 14 or conv.is_dilated or rgb_in_groups:
            return 0
        return 8 if last or conv.groups == 1 or (conv.ic % 8 == 0 and conv.oc % 8 == 0) else 0
    if any(d > 1 and s > 1 for d, s in zip(conv.dilation[:-1], conv.stride[:-1])) or any(
        d > 1 for d in conv.dilation[:-2]
    ):
        return 0
    if conv.dilation[-2] > 1 and reach[-2] > conv.inp[-2]:
        return 0
    if max(before[-2], behind[-2]) > reach[-2] // 2 or max(before[-1], behind[-1]) > 28:
        return 0
    if conv.kernel[-1] > 14 and (last or not shared.swaps_axes(conv)):
        return 0
    if any(pad and k >= i + pad for pad, k, i in zip(before[:-2], conv.kernel[:-2], conv.inp[:-2])):
        return 0
    if conv.ic < 16 and conv.groups == 1 and not last:
        return 16 if conv.ic <= 3 else 0
    return 16 if last or conv.groups == 1 or (conv.ic % 16 == 0 and conv.oc % 16 == 0) else 0


def transposed_forward(conv: Conv) -> Plan:
    """Return the plan of the mirrored convolution's backward; the bias is added to a copy of its result."""
    mirrored = replace(conv.mirrored, bias=False)
    fused = fused_width(conv)
    if fused:
        return nested(strided_product(mirrored, fused))
    plan = nested(backward_data(mirrored))
    copied = conv.written if product_width(mirrored) else plan.written
    return replace(plan, scratch=plan.scratch + aligned(copied)) if conv.bias else plan


UNEVEN_SINCE = "2.15"
"""The first release whose brgemm adds the bias to a transposed result that strides do not divide."""


def fused_width(conv: Conv) -> int:
    """Return the lanes of the strided product that a transposed forward tries first, with the bias in it, or 0."""
    if not since(UNEVEN_SINCE) and any(o % s for o, s in zip(conv.out, conv.stride)):
        return 0
    return next((wide for wide in lanes() if is_strided_product(conv.mirrored, wide)), 0)


def transposed_data(conv: Conv) -> Plan:
    """Return the plan of a transposed convolution's input gradient."""
    return nested(forward_plan(replace(conv.mirrored, bias=False)))


def transposed_weights(conv: Conv) -> Plan:
    """Return the plan of a transposed convolution's weight gradient."""
    return nested(backward_weights(replace(conv.mirrored, bias=False)))


def nested(plan: Plan) -> Plan:
    """Return the plan of a primitive nested in another, which reserves the inner scratchpad as one piece."""
    return replace(plan, scratch=aligned(plan.scratch))
