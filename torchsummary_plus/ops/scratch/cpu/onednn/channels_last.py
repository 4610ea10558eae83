"""Kernel choice for channels-last convolutions, whose activations oneDNN reads and writes in place.

Only weights are reordered. oneDNN decides by a model of the CPU's caches how many of their columns a product of small
matrices (brgemm) covers and which kernel runs groups and dilations; there a plan is a guess.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .....data.rounding import ceil_div, round_up
from . import threads as shared
from .convolution import (
    columns,
    direct_data,
    direct_weights,
    fits_depthwise,
    fits_depthwise_weights,
    fused_width,
    group_block,
    is_outside,
    is_pointwise,
    nested,
)
from .description import PAGE, Conv, Plan, aligned, batch_elements, lanes, threads
from .lowered import copies, squeezed
from .strided import is_strided_product, strided_product


def forward_plan(conv: Conv) -> Plan:
    """Return the plan of the forward."""
    wide = lanes()[0]
    if fits_depthwise(conv):
        return _plan(conv.depthwise_in(wide))
    if conv.is_depthwise or _has_narrow_groups(conv.ic, conv.groups, wide):
        return _in_blocks(conv, wide)
    at_once, narrower = _columns_at_once(conv.mirrored, wide), squeezed(conv, wide)
    copied, guess = copies(conv, at_once, wide)
    plan = _plan(conv.weights_in(at_once, 1), batch_elements(prod(narrower.kernel)) + copied)
    guess += _columns_guess(conv.mirrored) + (plan.scratch + plan.weights if _is_row_major_too(conv) else 0)
    return replace(plan, guess=guess)


def any_kernel(conv: Conv, plan: Plan) -> Plan:
    """Turn the plan into a guess that covers the greediest kernel where groups or dilations leave the choice open."""
    if conv.is_depthwise and len(conv.inp) == 2 and not conv.is_dilated:
        return plan
    if conv.groups == 1 and not conv.is_dilated:
        return plan
    most = conv.weights_in(64, 64) + conv.written + 16 * PAGE
    return replace(plan, guess=max(plan.guess, most))


def backward_data(conv: Conv) -> Plan:
    """Return the plan of the input's gradient."""
    wide = lanes()[0]
    if conv.is_depthwise and len(conv.inp) == 2 and not conv.is_dilated:
        return _plan(conv.depthwise_in(wide))
    if conv.is_strided or is_outside(conv):
        return _strided_or_outside(conv)
    if conv.is_depthwise or _has_narrow_groups(conv.oc, conv.groups, wide):
        return _in_blocks(conv, wide)
    return _products(conv, wide)


def _strided_or_outside(conv: Conv) -> Plan:
    """Return the plan of the input's gradient for strides, or outputs that see only padding."""
    for wide in lanes():
        if is_strided_product(conv, wide):
            return _strided(conv, wide)
        if direct_data(conv, wide, last=True):
            return _in_blocks(conv, wide)
    scratch = shared.gemm_for_data_last(conv)
    in_place = conv.ic * conv.oc * conv.groups == 1 and not _is_reordered(conv)
    plan = _plan(0 if in_place else conv.weights, _with_reordered(conv, scratch))
    return replace(plan, guess=scratch if threads() > 1 else 0)


def _strided(conv: Conv, wide: int) -> Plan:
    plan = strided_product(conv, wide)
    return _plan(plan.weights, plan.scratch)


def _in_blocks(conv: Conv, wide: int) -> Plan:
    """Return the plan of the direct kernel, in blocks of a register's channels or of a group's, if fewer."""
    block = group_block(conv, wide) if max(conv.ic, conv.oc) <= wide else wide
    return _plan(conv.weights_in(block or wide, block or wide))


def _products(conv: Conv, wide: int) -> Plan:
    """Return the plan of the input's gradient as the forward of a convolution that reads the output's gradient."""
    at_once = _columns_at_once(conv, wide)
    turned = replace(conv.mirrored, padding=tuple(r - 1 - p for r, p in zip(conv.reach, conv.padding)))
    copied, guess = copies(turned, at_once, wide, is_forward=False)
    plan = nested(_plan(conv.weights_in(1, at_once), batch_elements(prod(conv.kernel)) + copied))
    guess += _columns_guess(conv) + (plan.scratch + plan.weights if _is_row_major_too(conv) else 0)
    return replace(plan, guess=guess)


def backward_weights(conv: Conv) -> Plan:
    """Return the plan of the weight's gradient."""
    for wide in lanes():
        bias = aligned(conv.itemsize * conv.groups * round_up(conv.oc, wide)) if conv.bias and conv.oc % wide else 0
        if fits_depthwise_weights(conv):
            return _plan(conv.depthwise_in(wide), shared.depthwise_rows_reduction(conv, wide))
        if is_pointwise(conv):
            workers = shared.pointwise_workers(conv, wide)
            copied = prod(conv.out) * conv.ic * conv.itemsize * workers if conv.is_strided else 0
            scratch = bias + aligned(copied) + shared.pointwise_reduction(conv, wide)
            return _plan(conv.weights_in(wide, wide), scratch)
        if direct_weights(conv, wide, last=True):
            few = conv.ic < 16 and conv.groups == 1 if wide == 16 else conv.ic == 3
            scratch = bias + shared.direct_reduction(conv, wide, last=True)
            return _plan(conv.weights_in(wide, 1 if few else wide), scratch)
    return _plan(conv.weights, _with_reordered(conv, shared.gemm_for_weights_last(conv, columns(conv))))


def _with_reordered(conv: Conv, scratch: int) -> int:
    """Add the activations to a matrix product's scratch where oneDNN copies them, as row-major is the same layout."""
    return aligned(scratch + aligned(conv.read) + aligned(conv.written)) if _is_reordered(conv) else scratch


def _is_reordered(conv: Conv) -> bool:
    return _is_row_major_too(conv) and (lanes()[0] == 16 or is_outside(conv))


def _is_row_major_too(conv: Conv) -> bool:
    """Whether row-major is the same layout: of one channel or one pixel, both for what is read and for the result."""
    read, written = (conv.ic * conv.groups, conv.inp), (conv.oc * conv.groups, conv.out)
    return all(channels == 1 or prod(sizes) == 1 for channels, sizes in (read, written))


def transposed_forward(conv: Conv) -> Plan:
    """Return the plan of a transposed forward: the mirrored convolution's backward, or a forward if not strided."""
    mirrored, wide = conv.mirrored, lanes()[0]
    fused = fused_width(conv)
    if fused:
        return nested(_strided(mirrored, fused))
    if not (conv.is_strided or conv.is_depthwise or is_outside(mirrored)):
        return _products(mirrored, 8 if _has_narrow_groups(conv.ic, conv.groups, wide) else wide)
    plan = nested(backward_data(mirrored))
    is_uneven = conv.is_strided and any(is_strided_product(mirrored, width) for width in lanes())
    is_copied = conv.bias and (is_uneven or conv.is_depthwise or is_outside(mirrored))
    return replace(plan, scratch=plan.scratch + aligned(conv.written)) if is_copied else plan


def transposed_data(conv: Conv) -> Plan:
    """Return the plan of a transposed convolution's input gradient."""
    return nested(forward_plan(conv.mirrored))


def transposed_weights(conv: Conv) -> Plan:
    """Return the plan of a transposed convolution's weight gradient."""
    return nested(backward_weights(conv.mirrored))


def _plan(weights: int, scratch: int = 0) -> Plan:
    return Plan(0, weights, 0, scratch, channels_last=True)


def _has_narrow_groups(channels: int, groups: int, wide: int) -> bool:
    """Whether groups have so few channels that AVX-512 uses its direct kernel."""
    return wide == 16 and groups > 1 and channels <= wide


def _columns_at_once(conv: Conv, wide: int) -> int:
    """Return the columns per product: as many as fit in registers, as long as little is padded."""
    padded = round_up(conv.ic, wide)
    steps = prod(conv.stride)
    for count in (4, 3, 2):
        block = count * wide
        if block > padded or 4 * conv.ic < 3 * round_up(conv.ic, block) + (count > 2):
            continue
        if prod(conv.kernel) == 1:
            allowed = block < 48 or (
                prod(conv.inp) >= 64 * steps if count == 4 else conv.ic >= 0.95 * round_up(conv.ic, block)
            )
        elif block == 64:
            allowed = padded < 192
        else:
            allowed = block < 48 or (padded <= 384 and prod(conv.out) > 81 * steps)
        if allowed and (block < 48 or padded % block == 0):
            return block
    return wide


def _columns_guess(conv: Conv) -> int:
    """Return by how much the copy of the weights may be off, since some column blocks pad more than others."""
    wide = lanes()[0]
    if conv.ic <= wide:
        return 0
    copies = {conv.weights_in(1, count * wide) for count in range(1, min(4, ceil_div(conv.ic, wide)) + 1)}
    return max(copies) - min(copies)
