"""Kernel choice for channels-last convolutions, whose activations oneDNN reads and writes in place.

Only weights are reordered. oneDNN decides by a model of the CPU's caches how many of their columns a product of small
matrices (brgemm) covers and which kernel runs groups and dilations; there a plan is a guess.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .....data.rounding import round_up
from . import threads as shared
from .convolution import (
    batch_elements,
    columns,
    columns_at_once,
    columns_guess,
    direct_data,
    direct_weights,
    fits_depthwise,
    fits_depthwise_weights,
    group_block,
    is_outside,
    is_pointwise,
    is_strided_product,
    nested,
    strided_product,
    with_bias,
)
from .description import PAGE, Conv, Plan, aligned, lanes, threads


def forward_plan(conv: Conv) -> Plan:
    """Return the plan of the forward."""
    wide = lanes()[0]
    if fits_depthwise(conv):
        return _plan(conv.depthwise_in(wide))
    if conv.is_depthwise or _has_narrow_groups(conv.ic, conv.groups, wide):
        return _in_blocks(conv, wide)
    plan = _plan(conv.weights_in(columns_at_once(conv.mirrored, wide), 1), batch_elements(conv))
    return replace(plan, guess=columns_guess(conv.mirrored) + _lowered(conv, wide) + _in_one_row(conv))


def _in_one_row(conv: Conv) -> int:
    """Return the most that an image of one strided patch takes besides: oneDNN multiplies it as one row of a matrix.

    Measured on 12 kernels by one and two threads: 4 to 16 pages a thread, 4 more for each doubling of the row.
    """
    is_patch = conv.kernel == conv.inp == conv.stride and conv.batch > 1 and prod(conv.kernel) > 1
    if not is_patch or conv.groups > 1 or any(conv.padding):
        return 0
    return threads() * 4 * PAGE * max(2, (conv.ic * prod(conv.kernel)).bit_length() - 8)


def is_lowered(conv: Conv, wide: int) -> bool:
    """Whether AVX-512 reorders the rows of a single input channel."""
    return wide == 16 and conv.ic * conv.groups == 1 and prod(conv.kernel) > 1


def _lowered(conv: Conv, wide: int) -> int:
    """Return the most that AVX-512 may use to reorder the rows of a single channel (``relo``), in whole registers."""
    if not is_lowered(conv, wide):
        return 0
    rows = prod(i + 2 * p for i, p in zip(conv.inp, conv.padding))
    kernel = prod(conv.kernel[:-1]) * round_up(conv.kernel[-1], wide)
    copies = (threads() * rows + conv.oc) * kernel
    return aligned(copies * conv.itemsize, PAGE) + 16 * PAGE


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
    if is_strided_product(conv, wide):
        plan = strided_product(conv, wide)
        return replace(_plan(plan.weights, plan.scratch), guess=plan.guess)
    if conv.is_strided or is_outside(conv):
        return _without_products(conv)
    if conv.is_depthwise or _has_narrow_groups(conv.oc, conv.groups, wide):
        return _in_blocks(conv, wide)
    return _products(conv, wide)


def _without_products(conv: Conv) -> Plan:
    """Return the plan of the input's gradient for kernels other than brgemm."""
    for wide in lanes():
        if direct_data(conv, wide, last=True):
            return _in_blocks(conv, wide)
    scratch = shared.gemm_for_data_last(conv)
    return replace(_plan(conv.weights, scratch), guess=scratch if threads() > 1 else 0)


def _in_blocks(conv: Conv, wide: int) -> Plan:
    """Return the plan of the direct kernel, in blocks of a register's channels or of a group's, if fewer."""
    block = group_block(conv, wide) if max(conv.ic, conv.oc) <= wide else wide
    return _plan(conv.weights_in(block or wide, block or wide))


def _products(conv: Conv, wide: int) -> Plan:
    plan = nested(_plan(conv.weights_in(1, columns_at_once(conv, wide)), batch_elements(conv)))
    return replace(plan, guess=columns_guess(conv))


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
    return _plan(conv.weights, shared.gemm_for_weights_last(conv, columns(conv)))


def transposed_forward(conv: Conv) -> Plan:
    """Return the plan of a transposed forward: the mirrored convolution's backward, or a forward if not strided."""
    mirrored, wide = conv.mirrored, lanes()[0]
    if conv.is_strided or conv.is_depthwise or is_outside(mirrored):
        return with_bias(conv, nested(backward_data(mirrored)))
    return _products(mirrored, 8 if _has_narrow_groups(conv.ic, conv.groups, wide) else wide)


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
