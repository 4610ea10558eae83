"""CUDA: scratch memory of transfers between the GPU and the CPU."""

from __future__ import annotations

from typing import Any

from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Result, scratch
from ..sizes import elements, itemsize, nbytes
from .allocations import buffers, copies

TRANSFERS = "aten/src/ATen/native/cuda/Copy.cu, copy_requires_temporaries and copy_kernel_cuda"


@scratch("cuda", "aten::_to_copy", source=TRANSFERS, band=0.0)
def transferred(out: Any, x: Any, *, non_blocking: bool = False, **_: Any) -> Course:
    """As :func:`copied_to`, with a new target."""
    temporary = _between(out, x, non_blocking)
    return (Result(0), *temporary) if temporary else ()


@scratch("cuda", "aten::copy_", source=TRANSFERS, band=0.0)
def copied_to(out: Any, target: Any, x: Any, non_blocking: bool = False) -> Course:
    """Between devices, dtypes are converted on the GPU if the copy does not block; bytes move between dense tensors."""
    return _between(target, x, non_blocking)


def _between(target: Any, x: Any, non_blocking: bool) -> tuple[Alloc, ...]:
    """Return a transfer's temporary tensors on the GPU."""
    sides = target.device.type, x.device.type
    if sorted(sides) != ["cpu", "cuda"] or not target.numel():
        return ()
    same_dtype, same_shape = target.dtype is x.dtype, x.shape == target.shape
    if same_dtype and same_shape and x.stride() == target.stride() and is_dense(x):
        return ()
    if sides == ("cpu", "cuda"):
        return _to_cpu(target, x, converts_first=non_blocking and not same_dtype)
    if non_blocking and not same_dtype:
        return (Alloc(elements(target) * itemsize(x)),)
    return copies(target)


def _to_cpu(target: Any, x: Any, converts_first: bool) -> tuple[Alloc, ...]:
    """Return the temporary tensors of a transfer to the CPU: the source expanded, converted or made contiguous."""
    if converts_first:
        is_permuted = is_dense(x) and not x.is_contiguous()
        return buffers(elements(x) * itemsize(target), nbytes(target) if is_permuted else 0)
    return () if x.is_contiguous() and x.shape == target.shape else (Alloc(elements(target) * itemsize(x)),)
