"""CUDA: scratch memory of comparisons."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ....data.capability import Capability
from ..registry import Alloc, Course, Result, scratch
from ..sizes import elements, itemsize, nbytes
from .allocations import Allocations, joined
from .chips import chip_of
from .reductions import course, extreme

COMPARED = "aten/src/ATen/native/cuda/Equal.cpp; TensorCompare.cpp, isclose"


def _all(capability: Capability, count: int) -> Course:
    """Return the allocations of ``flags.all()`` for so many flags: the answer, and the reduction's staging buffers."""
    flags = torch.empty(count, dtype=torch.bool, device="meta")
    return joined((Alloc(1),), course(chip_of(capability), flags, [0], torch.bool, extreme(torch.bool)))


@scratch("cuda", "aten::equal", source=COMPARED, band=0.0, by_capability=True)
def equal(capability: Capability, out: Any, x: Any, other: Any) -> Course:
    """A flag for each element; none where both are the same memory or of other sizes."""
    if x.shape != other.shape or not x.numel() or _place(x) == _place(other):
        return ()
    return joined((Alloc(x.numel()),), _all(capability, x.numel()))


def _place(tensor: Any) -> tuple[Any, ...]:
    """Return where and how a tensor lies in memory."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.stride(), tensor.dtype


@scratch("cuda", "aten::allclose", source=COMPARED, band=0.0, by_capability=True)
def all_close(
    capability: Capability, out: Any, x: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, *_: Any
) -> Course:
    """The steps of ``isclose``, then a check that all elements are close."""
    count = int(prod(torch.broadcast_shapes(x.shape, other.shape)))
    size, other_size = count * itemsize(x), nbytes(other)
    steps = Allocations()
    steps.buffer(count)  # close = self == other
    if rtol or atol:
        scaled = steps.buffer(other_size)  # atol + (rtol * other).abs()
        magnitudes = _magnitudes(steps, other_size, other)
        allowed = steps.buffer(other_size // _parts(other))
        steps.free(magnitudes, scaled)
        difference = steps.buffer(size)  # (self - other).abs()
        error = _magnitudes(steps, size, x)
        steps.free(difference)
        magnitude = steps.buffer(size // _parts(x))  # isfinite(error)
        is_bounded, is_number, is_finite = (steps.buffer(count) for _ in range(3))
        steps.free(is_number, is_bounded, magnitude)
        is_small = steps.buffer(count)  # error <= allowed
        steps.free(is_small, is_finite, error, allowed)
    steps.append(_all(capability, count))
    return steps.course()


def _parts(tensor: Any) -> int:
    """Return how many real numbers an element consists of."""
    return 2 if tensor.is_complex() else 1


def _magnitudes(steps: Allocations, size: int, like: Any) -> int:
    """Allocate the magnitudes of so many bytes of numbers, which of complex ones are complex at first."""
    magnitudes = steps.buffer(size // _parts(like))
    if like.is_complex():
        steps.temporary(size)
    return magnitudes


@scratch("cuda", "aten::isin.Tensor_Tensor", source="aten/src/ATen/native/TensorCompare.cpp, isin_default_kernel_gpu",
         band=0.0)  # fmt: skip
def is_in(out: Any, x: Any, tests: Any, **_: Any) -> Course:
    """For few test elements each pair is compared, and any of a row is copied to the result."""
    if elements(tests) >= 10 * elements(x) ** 0.145:  # Others are sorted together, by operators of their own.
        return ()
    return Result(0), Alloc(elements(x) * elements(tests)), Alloc(elements(x))
