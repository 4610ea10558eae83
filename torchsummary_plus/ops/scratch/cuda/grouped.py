"""CUDA: products of groups of matrices.

Source: aten/src/ATen/native/cuda/GroupedBlas.cpp, ``_grouped_mm_cuda``; GroupMM.cu and ScaledGroupMM.cu for the one
kernel of CUTLASS that Hopper runs; ../GroupedMMUtils.h, ``_grouped_mm_fallback``, for the products of other GPUs.
"""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ....data.rounding import round_up
from ..registry import Alloc, AtMost, Course, Result, lasting, scratch
from .blas import workspace_bytes
from .chips import chip_of

SOURCE = "aten/src/ATen/native/cuda/GroupedBlas.cpp, GroupMM.cu and ScaledGroupMM.cu; GroupedMMUtils.h"

HOPPER, BLACKWELL = (9, 0), (10, 0)
"""The GPUs whose groups one kernel multiplies: measured, and assumed to need at most a few times as much."""
POINTER, STRIDES, SIZES = 8, 3 * 8, 3 * 4
"""Bytes per group of a tensor's address, of the strides of both factors and the result, and of the product's sizes."""
MAPS = 4 * 128
"""Bytes per multiprocessor of CUTLASS's descriptors of both factors, the addend and the result."""


@scratch("cuda", "aten::_grouped_mm", source=SOURCE, band=0.0, by_capability=True)
def grouped(capability: Capability, out: Any, a: Any, b: Any, offs: Any = None, *_: Any, **__: Any) -> Course | AtMost:
    """In one kernel, what :func:`_of_kernel` says; otherwise one product after another into the result."""
    return _of_kernel(capability, a, b, offs, tensors=3) if _is_one_kernel(capability, a, b) else ()


@scratch("cuda", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2", source=SOURCE, band=0.0, by_capability=True)
def scaled(
    capability: Capability, out: Any, a: Any, b: Any, *others: Any, offs: Any = None, **_: Any
) -> Course | AtMost:
    """As :func:`grouped` in one kernel, with the addresses of two scales."""
    given = next((value for value in others if isinstance(value, torch.Tensor) and value.dtype is torch.int32), offs)
    return _of_kernel(capability, a, b, given, tensors=5)


def _is_one_kernel(capability: Capability, a: Any, b: Any) -> bool:
    return capability in (HOPPER, BLACKWELL) and a.dtype is b.dtype is torch.bfloat16


def _of_kernel(capability: Capability, a: Any, b: Any, offs: Any, tensors: int) -> Course | AtMost:
    """Return the kernel's arguments for each group, then descriptors for each multiprocessor.

    Two addresses of a tensor are aligned together.
    """
    groups = next((len(factor) for factor in (a, b) if factor.dim() == 3), 0) or len(offs)
    arguments = tensors * POINTER * round_up(groups, 2) + (STRIDES + SIZES) * groups
    course = Result(0), Alloc(arguments), Alloc(MAPS * chip_of(capability).multiprocessors)
    return course if capability == HOPPER else AtMost(3 * course[2].nbytes, course)


@lasting("cuda", "aten::_grouped_mm", source=SOURCE, band=0.0, by_capability=True)
def cublas_of_groups(
    capability: Capability, out: Any, a: Any, b: Any, offs: Any = None, *_: Any, **__: Any
) -> tuple[tuple[str, int], ...]:
    """The workspace of cuBLAS where it multiplies one batch, or one group after another."""
    is_batch = a.numel() and b.numel() and not _is_one_kernel(capability, a, b)
    return (("cublas", workspace_bytes(capability)),) if is_batch else ()
