"""CUDA: scratch memory of comparisons, and of transfers between the GPU and the CPU."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ....data.capability import Capability
from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, scratch
from ..sizes import copied, elements, itemsize, nbytes
from .chips import chip_of
from .reductions import Kind, course

COMPARED = "aten/src/ATen/native/cuda/Equal.cpp; TensorCompare.cpp, isclose"


def _all(capability: Capability, count: int, first: int) -> Course:
    """Return the answer and the staging of a check that all of so many flags are set."""
    flags = torch.empty(count, dtype=torch.bool, device="meta")
    return Alloc(1), *course(chip_of(capability), flags, [0], torch.bool, Kind(1, 4, torch.bool), first + 1)


@scratch("cuda", "aten::equal", source=COMPARED, band=0.0, by_capability=True)
def equal(capability: Capability, out: Any, x: Any, other: Any) -> Course:
    """A flag for each element; none where both are the same memory or of other sizes."""
    if x.shape != other.shape or not x.numel() or _place(x) == _place(other):
        return ()
    return Alloc(x.numel()), *_all(capability, x.numel(), 1)


def _place(tensor: Any) -> tuple[Any, ...]:
    """Return where and how a tensor lies in memory."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.stride(), tensor.dtype


@scratch("cuda", "aten::allclose", source=COMPARED, band=0.0, by_capability=True)
def all_close(
    capability: Capability, out: Any, x: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, *_: Any
) -> Course:
    """Equal elements, the tolerance, the difference, whether that is finite, and whether it is small."""
    count = int(prod(torch.broadcast_shapes(x.shape, other.shape)))
    flags, numbers, others = Alloc(count), Alloc(count * itemsize(x)), Alloc(nbytes(other))
    if not rtol and not atol:
        return flags, *_all(capability, count, 1)
    allowed = others, others, others, Free(2), Free(1)
    difference = numbers, numbers, Free(4)
    finite = numbers, flags, flags, flags, Free(8), Free(7), Free(6)
    return (
        flags,
        *allowed,
        *difference,
        *finite,
        flags,
        Free(10),
        Free(9),
        Free(5),
        Free(3),
        *_all(capability, count, 11),
    )


@scratch("cuda", "aten::isin.Tensor_Tensor", source="aten/src/ATen/native/TensorCompare.cpp, isin_default_kernel_gpu",
         band=0.0)  # fmt: skip
def is_in(out: Any, x: Any, tests: Any, **_: Any) -> Course:
    """For few test elements each pair is compared, and any of a row is copied to the result."""
    if elements(tests) >= 10 * elements(x) ** 0.145:  # Others are sorted together, by operators of their own.
        return ()
    return Result(0), Alloc(elements(x) * elements(tests)), Alloc(elements(x))


@scratch("cuda", "aten::multi_margin_loss", source="aten/src/ATen/native/cuda/MultiMarginLoss.cu", band=0.0)
def multi_margin(
    out: Any, x: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1
) -> Course:
    """Contiguous copies, and where rows are reduced a loss for each."""
    copies = tuple(Alloc(copied(tensor)) for tensor in (x, target, weight) if tensor is not None and copied(tensor))
    return Result(0), *copies, *((Alloc(len(x) * itemsize(x)),) if reduction and x.dim() > 1 else ())


@scratch("cuda", "aten::mvlgamma", source="aten/src/ATen/native/UnaryOps.cpp, mvlgamma", band=0.0)
def mvlgamma(out: Any, x: Any, p: int) -> Course:
    """Half the steps up to ``p``, which are added to each element, and the sum of the results."""
    return Alloc(p * itemsize(out)), Alloc(p * nbytes(out)), Free(0), Result(0)


TRANSFERS = "aten/src/ATen/native/cuda/Copy.cu, copy_requires_temporaries and copy_kernel_cuda"


@scratch("cuda", "aten::_to_copy", source=TRANSFERS, band=0.0)
def transferred(out: Any, x: Any, *, non_blocking: bool = False, **_: Any) -> Course:
    """As :func:`copied_to`, with a new target."""
    taken = _between(out, x, non_blocking)
    return (Result(0), *(Alloc(size) for size in taken)) if taken else ()


@scratch("cuda", "aten::copy_", source=TRANSFERS, band=0.0)
def copied_to(out: Any, target: Any, x: Any, non_blocking: bool = False) -> Course:
    """Between devices, dtypes are converted on the GPU if the copy does not block; bytes move between dense tensors."""
    return tuple(Alloc(size) for size in _between(target, x, non_blocking))


def _between(target: Any, x: Any, non_blocking: bool) -> tuple[int, ...]:
    """Return the bytes of a transfer's temporary tensors on the GPU."""
    places = target.device.type, x.device.type
    if sorted(places) != ["cpu", "cuda"] or not target.numel():
        return ()
    count, alike = target.numel(), target.dtype is x.dtype
    if alike and x.shape == target.shape and x.stride() == target.stride() and is_dense(x):
        return ()
    if places[0] == "cpu":
        if alike or not non_blocking:
            return () if x.is_contiguous() and x.shape == target.shape else (count * itemsize(x),)
        whole = is_dense(x) and not x.is_contiguous()
        return (x.numel() * itemsize(target), *((count * itemsize(target),) if whole else ()))
    if not alike and non_blocking:
        return (count * itemsize(x),)
    return () if target.is_contiguous() else (count * itemsize(target),)
