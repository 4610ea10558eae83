"""Convolutions whose kernel is as large as their input, which oneDNN runs as inner products."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .....data.rounding import round_up
from .....live.versions import since
from ....processor import has_avx512
from .description import BATCH_ELEMENT, PAGE, Conv, Plan, aligned, threads

LARGE_KERNEL = 27
"""Largest kernel, in positions, that is never multiplied as one matrix (``ks_threshold``)."""

INNER_BLOCK = 512, 64
"""Rows and columns of a block of the weights; each thread of a product copies one, or two beyond 1,024 rows. Measured;
``brgemm_matmul_utils.cpp`` chooses them.
"""

BLOCKS_SINCE = "2.13"
"""The first release whose oneDNN copies the weights block by block.

The one of torch 2.11 copies at most four times the whole weights, with their rows padded to a power of two from 128 on
and their columns to the blocks' width; measured on 240 operators.
"""

INNER_ELEMENTS = 16
"""Elements of such a thread's batch."""


def inner_product(conv: Conv, last: bool, part: int) -> Plan:
    """Return the plan of a kernel as large as the input, in channels-last, for one part of forward, data, weights.

    Its layouts are exact; how a product is cut follows oneDNN's model of the caches, so its scratch may be off: by 64
    KiB a thread, and in a gradient by the bytes of its tensors besides, which held in 1,440 measured operators.
    Before oneDNN 3.12 the forward, too, may copy all of its tensors.
    """
    layouts = (0, conv.weights if part else 0, 0) if last else (conv.read, conv.weights, conv.written)
    if conv.ic == 1 and not part:  # Of one channel, both layouts are the same.
        layouts = 0, 0, layouts[2]
    plan = Plan(*layouts, channels_last=True)
    depth, (rows, width) = conv.ic * prod(conv.kernel), INNER_BLOCK
    guess = threads() * 16 * PAGE
    if not since(BLOCKS_SINCE):
        guess += 4 * 2 ** max(7, (depth - 1).bit_length()) * round_up(conv.oc, width) * conv.itemsize
    if part:
        guess += conv.read + conv.weights + conv.written
        return replace(plan, guess=guess, read=plan.written, written=plan.read, channels_last=part == 2)
    copied = 2 * rows if depth > 2 * rows else min(round_up(depth, 16), rows)
    copies = aligned(threads() * copied * width * conv.itemsize) if conv.oc > 1 else 0
    scratch = aligned(aligned(copies + aligned(threads() * INNER_ELEMENTS * BATCH_ELEMENT)))
    return replace(plan, scratch=scratch, guess=guess)


def is_inner_product(conv: Conv) -> bool:
    """Whether a kernel as large as the input is one product of matrices, in channels-last, for each direction.

    Source: src/cpu/x64/ip_convolution.hpp, ``check_conv_ip``.
    """
    covers = conv.kernel == conv.inp and not conv.is_dilated and not any(conv.padding) and not any(conv.ends)
    plain = covers and conv.groups == 1 and not conv.is_strided
    return plain and conv.batch > 1 and prod(conv.kernel) > LARGE_KERNEL and has_avx512()
