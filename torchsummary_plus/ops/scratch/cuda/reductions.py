"""CUDA: staging buffers of reductions in which several thread blocks share an output.

Source: aten/src/ATen/native/cuda/Reduce.cuh, ``setReduceConfig`` and ``gpu_reduce_kernel``; each reduction's
accumulator type and vectorised loads: Reduce{SumProd,Moment,Norm,MinValues,MaxValues,ArgMax,ArgMin,Logic}Kernel.cu.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from ....data.rounding import ceil_div, power_of_two_below
from ...dtypes import HALVES
from ..registry import Alloc, Course, Free, scratch
from .chips import Chip, chip_of
from .iterator import Reduction, reduction

SOURCE = "aten/src/ATen/native/cuda/Reduce.cuh"
WARP = 32
FEWEST, MOST = 16, 256
"""Values reduced per thread, at least and at most, where blocks share outputs."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kernel's accumulator bytes, inputs loaded at once, and input dtype."""

    accumulated: int
    vector: int
    dtype: torch.dtype


def staged(chip: Chip, what: Reduction, kind: Kind) -> tuple[int, int] | None:
    """Return the bytes of one launch's buffer and semaphores; None if no output is shared among blocks.

    >>> import torch
    >>> staged(chip_of((8, 0)), reduction(torch.empty(6304, 768), [0], 4), Kind(4, 4, torch.float32))
    (38928384, 24)
    """
    outputs = what.num_outputs
    inputs = what.numel // outputs
    along = what.num_reduced == len(what.shape) or what.input[0] < what.input[what.num_reduced]
    fastest = what.input[0 if along else what.num_reduced]
    wide, high, vector = (inputs, outputs, 1) if along else (outputs, inputs, 1)
    if fastest == kind.dtype.itemsize:
        if along and wide >= 128 and what.num_reduced == 1:
            wide //= kind.vector
        elif not along:
            vector = _output_vector(what, kind.dtype.itemsize)
            wide //= vector
    width, height = _block(wide, high, (256 if kind.dtype is torch.complex128 else 512) // vector)
    step_in, step_out = (width, 1) if along else (1, width)
    shares_warps = ceil_div(inputs, step_in) >= min(height * 16, MOST)
    if shares_warps:
        step_in *= height
    else:
        step_out *= height
    values = ceil_div(inputs, step_in)
    target = chip.multiprocessors * (chip.threads // (width * height))
    grid = ceil_div(outputs // vector, step_out)
    if not shares_warps or values < MOST or grid > target:
        return None
    blocks = max(min(ceil_div(target, grid), ceil_div(values, FEWEST)), ceil_div(values, MOST))
    if blocks <= 1:
        return None
    return kind.accumulated * outputs * blocks * (1 if along else width * vector), 4 * grid


def _block(wide: int, high: int, most: int) -> tuple[int, int]:
    """Return the width and height of a thread block."""
    wide, high = (most if size >= most else power_of_two_below(size) for size in (wide, high))
    width = min(wide, WARP)
    height = min(high, most // width)
    return min(wide, most // height), height


def _output_vector(what: Reduction, itemsize: int) -> int:
    """Return the outputs per thread: 4 if the input is suitably aligned."""
    first = what.num_reduced
    others = [stride // itemsize for axis, stride in enumerate(what.input) if axis != first]
    vector = 4
    for number in (what.offset, what.shape[first], *others):
        while number % vector:
            vector //= 2
    return vector


def course(
    chip: Chip, tensor: Any, axes: Collection[int], out_dtype: torch.dtype, kind: Kind, first: int = 0
) -> Course:
    """Return a reduction's allocations besides its result: a cast copy, an accumulation buffer, staging buffers.

    ``first`` is the number of buffers that the operator has allocated before.
    """
    steps: list[Alloc | Free] = []
    if tensor.numel() < 2:
        return ()
    copied = None
    if tensor.dtype is not kind.dtype:
        copied = kind.dtype.itemsize
        steps.append(Alloc(tensor.numel() * copied))
    whole = reduction(tensor, axes, out_dtype.itemsize, copied)
    accumulates = kind.dtype in HALVES and out_dtype is kind.dtype
    if accumulates and not whole.has_short_offsets and kind.accumulated > out_dtype.itemsize:
        steps.append(Alloc(whole.num_outputs * kind.accumulated))
    number = first + len(steps)
    for part in whole.parts():
        sizes = staged(chip, part, kind)
        if sizes is not None:
            steps += [Alloc(sizes[0]), Alloc(sizes[1]), Free(number + 1), Free(number)]
            number += 2
    return tuple(steps)


def sum_course(chip: Chip, tensor: Any, axes: Collection[int], first: int = 0) -> Course:
    """Return the allocations of a sum in the tensor's own dtype, besides its result."""
    return course(chip, tensor, axes, tensor.dtype, Kind(*sum_like(tensor.dtype), tensor.dtype), first)


def _accumulator(dtype: torch.dtype) -> int:
    """Return the bytes of the accumulator type for sums of a dtype."""
    return 4 if dtype in HALVES else dtype.itemsize


def _axes(dim: Any) -> list[int]:
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, (tuple, list)) else out


Sized = Callable[[torch.dtype], tuple[int, int]]


def sum_like(dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes of a sum's accumulator, and the inputs loaded at once."""
    return _accumulator(dtype), 8 if dtype.itemsize == 2 else 4


def welford(dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes of mean, deviation and count (as integer and as float), and the inputs loaded at once."""
    return (24 if dtype is torch.float64 else 16), 2


def _extreme(dtype: torch.dtype) -> tuple[int, int]:
    return dtype.itemsize, 4


def _indexed(dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes of a value and its index, aligned to 8, and the inputs loaded at once."""
    return 16, 4


def _register(operators: Collection[str], sized: Sized, dim_at: int | None, casts: bool = False) -> None:
    """Register reductions whose axes are at one position among the arguments after the tensor."""

    @scratch("cuda", *(f"aten::{name}" for name in operators), source=SOURCE, band=0.0, by_capability=True)
    def formula(capability: Any, out: Any, tensor: Any, *args: Any, **kwargs: Any) -> Course:
        dim = kwargs.get("dim") if dim_at is None or len(args) <= dim_at else args[dim_at]
        result = _first(out).dtype
        lowered = tensor.dtype in HALVES and result is torch.float32
        magnitudes = tensor.is_complex() and not result.is_complex
        dtype = tensor.dtype if lowered or magnitudes or not casts else result
        return course(chip_of(capability), tensor, _axes(dim), result, Kind(*sized(dtype), dtype))


_register(("sum", "mean", "prod", "nansum"), sum_like, None, casts=True)
_register(("sum.dim_IntList", "mean.dim", "prod.dim_int"), sum_like, 0, casts=True)
_register(("linalg_vector_norm",), sum_like, 1, casts=True)
_register(("norm.ScalarOpt_dim",), sum_like, 1)
_register(("norm.Scalar",), sum_like, None)
_register(("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"), welford, 0)
_register(("amax", "amin"), _extreme, 0)
_register(("max", "min", "any", "all"), _extreme, None)
_register(("any.dim", "all.dim", "any.dims", "all.dims"), _extreme, 0)
_register(("argmax", "argmin"), _indexed, 0)
