"""CUDA: staging buffers of reductions in which several thread blocks share an output.

``TensorIterator`` orders and merges a reduction's axes before it chooses a kernel. Source:
aten/src/ATen/TensorIterator.cpp, ``reorder_dimensions``, ``coalesce_dimensions``, ``can_use_32bit_indexing``,
``get_dim_to_split`` and ``SplitUntil32Bit``; aten/src/ATen/native/ReduceOpsUtils.h, ``review_reduce_result``;
aten/src/ATen/native/cuda/Reduce.cuh, ``setReduceConfig`` and ``gpu_reduce_kernel``; each reduction's
accumulator type and vectorised loads: Reduce{SumProd,Moment,Norm,MinValues,MaxValues,AMinMax,ArgMax,ArgMin,
Logic}Kernel.cu.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from ....data.units import ceil_div, power_of_two_below
from ...dtypes import HALVES
from ...strides import strides_of_copy
from ..registry import Alloc, Course, Result, scratch
from .allocations import Allocations, copies, joined, results
from .chips import Chip

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


def summing(dtype: torch.dtype) -> Kind:
    """Return the kind of a sum: halves accumulate in float32."""
    return Kind(4 if dtype in HALVES else dtype.itemsize, 8 if dtype.itemsize == 2 else 4, dtype)


def magnitudes(dtype: torch.dtype) -> Kind:
    """Return the kind of a norm, which accumulates the magnitudes of complex numbers."""
    kind = summing(dtype)
    return replace(kind, accumulated=kind.accumulated // 2) if dtype.is_complex else kind


def welford(dtype: torch.dtype) -> Kind:
    """Return the kind of a variance, which accumulates mean, deviation and count (as int32 and as float).

    Source: aten/src/ATen/native/SharedReduceOps.h, ``WelfordData``, whose int32 is padded beside doubles.
    """
    return Kind(32 if dtype is torch.float64 else 16, 2, dtype)


def extreme(dtype: torch.dtype) -> Kind:
    """Return the kind of a maximum or minimum, or of ``any`` and ``all``."""
    return Kind(dtype.itemsize, 4, dtype)


def both_extremes(dtype: torch.dtype) -> Kind:
    """Return the kind of an ``aminmax``, which accumulates the least and the largest value."""
    return Kind(2 * dtype.itemsize, 4, dtype)


def _indexed(dtype: torch.dtype) -> Kind:
    """Return the kind of an ``argmax``, or of extremes with indices: a value and its index, aligned to 8."""
    return Kind(16, 4, dtype)


def staged(chip: Chip, what: Reduction, kind: Kind) -> tuple[int, int] | None:
    """Return the bytes of one launch's buffer and semaphores; None if no output is shared among blocks.

    >>> import torch
    >>> staged(Chip((8, 0)), reduction(torch.empty(6304, 768), [0], 4), Kind(4, 4, torch.float32))
    (38928384, 24)
    """
    outputs = what.num_outputs
    inputs = what.numel // outputs
    on_fastest = what.num_reduced == len(what.shape) or what.input[0] < what.input[what.num_reduced]
    across, down, vector = _launch(what, kind, on_fastest, inputs, outputs)
    width, height = _block(across, down, (256 if kind.dtype is torch.complex128 else 512) // vector)
    input_step, output_step = (width, 1) if on_fastest else (1, width)
    splits_input = ceil_div(inputs, input_step) >= min(height * 16, MOST)
    if splits_input:
        input_step *= height
    else:
        output_step *= height
    values = ceil_div(inputs, input_step)
    resident = chip.multiprocessors * (chip.threads // (width * height))
    grid = ceil_div(outputs // vector, output_step)
    if not splits_input or values < MOST or grid > resident:
        return None
    sharing = max(min(ceil_div(resident, grid), ceil_div(values, FEWEST)), ceil_div(values, MOST))
    if sharing <= 1:
        return None
    return kind.accumulated * outputs * sharing * (1 if on_fastest else width * vector), 4 * grid


def _launch(what: Reduction, kind: Kind, on_fastest: bool, inputs: int, outputs: int) -> tuple[int, int, int]:
    """Return the elements across and down a grid, and the outputs per thread; ``on_fastest``, inputs go across."""
    across, down = (inputs, outputs) if on_fastest else (outputs, inputs)
    is_dense = what.input[0 if on_fastest else what.num_reduced] == kind.dtype.itemsize
    if is_dense and not on_fastest:
        vector = _output_vector(what, kind.dtype.itemsize)
        return across // vector, down, vector
    if is_dense and across >= 128 and what.num_reduced == 1:
        across //= kind.vector
    return across, down, 1


def _block(across: int, down: int, most: int) -> tuple[int, int]:
    """Return the width and height of a thread block of at most so many threads."""
    across, down = (most if size >= most else power_of_two_below(size) for size in (across, down))
    width = min(across, WARP)
    height = min(down, most // width)
    return min(across, most // height), height


def _output_vector(what: Reduction, itemsize: int) -> int:
    """Return the outputs per thread: 4 if the input is suitably aligned."""
    first = what.num_reduced
    others = [stride // itemsize for axis, stride in enumerate(what.input) if axis != first]
    vector = 4
    for number in (what.offset, what.shape[first], *others):
        while number % vector:
            vector //= 2
    return vector


def course(chip: Chip, tensor: Any, axes: Collection[int], out_dtype: torch.dtype, kind: Kind) -> Course:
    """Return a reduction's allocations besides its result: a cast copy, an accumulation buffer, staging buffers."""
    if tensor.numel() < 2:
        return ()
    steps, itemsize = Allocations(), None
    if tensor.dtype is not kind.dtype:
        itemsize = kind.dtype.itemsize
        steps.buffer(tensor.numel() * itemsize)
    whole = reduction(tensor, axes, out_dtype.itemsize, itemsize)
    accumulates = kind.dtype in HALVES and out_dtype is kind.dtype
    if accumulates and not whole.has_short_offsets and kind.accumulated > out_dtype.itemsize:
        steps.buffer(whole.num_outputs * kind.accumulated)
    for part in whole.parts():
        sizes = staged(chip, part, kind)
        if sizes is not None:
            partial, semaphores = map(steps.buffer, sizes)
            steps.free(semaphores, partial)
    return steps.course()


def sum_course(chip: Chip, tensor: Any, axes: Collection[int]) -> Course:
    """Return the allocations of a sum in the tensor's own dtype, besides its result."""
    return course(chip, tensor, axes, tensor.dtype, summing(tensor.dtype))


def mask_like(tensor: Any) -> torch.Tensor:
    """Return a mask on ``meta``, laid out as a comparison of a tensor's elements returns it."""
    strides = strides_of_copy(tuple(tensor.shape), tensor.stride())
    return torch.empty_strided(tensor.shape, strides, dtype=torch.bool, device="meta")


def part_of(tensor: Any) -> torch.Tensor:
    """Return a tensor on ``meta``, laid out as the real parts of complex numbers are, or the imaginary ones."""
    strides = [2 * step for step in tensor.stride()]
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype.to_real(), device="meta")


def axes_of(dim: Any) -> list[int]:
    """Return the axes that a ``dim`` argument names; an empty list stands for all."""
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


def _register(
    operators: Collection[str], kind_of: Callable[[torch.dtype], Kind], dim_at: int | None, casts: bool = False
) -> None:
    """Register reductions whose axes are at one position among the arguments after the tensor."""

    @scratch("cuda", *(f"aten::{name}" for name in operators), source=SOURCE)
    def formula(chip: Chip, out: Any, tensor: Any, *args: Any, **kwargs: Any) -> Course:
        dim = kwargs.get("dim") if dim_at is None or len(args) <= dim_at else args[dim_at]
        result = (out[0] if isinstance(out, (tuple, list)) else out).dtype
        lowered = tensor.dtype in HALVES and result is torch.float32
        becomes_real = tensor.is_complex() and not result.is_complex
        dtype = tensor.dtype if lowered or becomes_real or not casts else result
        return course(chip, tensor, axes_of(dim), result, kind_of(dtype))


_register(("sum", "mean", "prod", "nansum"), summing, None, casts=True)
_register(("sum.dim_IntList", "mean.dim", "prod.dim_int"), summing, 0, casts=True)
_register(("linalg_vector_norm",), magnitudes, 1, casts=True)
_register(("norm.ScalarOpt_dim",), magnitudes, 1)
_register(("norm.Scalar",), magnitudes, None)
_register(("amax", "amin"), extreme, 0)
_register(("any", "all"), extreme, None)
_register(("any.dim", "all.dim", "any.dims", "all.dims"), extreme, 0)
_register(("max.dim", "min.dim"), _indexed, 0)


VARIANCES = tuple(f"aten::{name}.correction" for name in ("var", "std", "var_mean", "std_mean"))


@scratch(*("cuda", *VARIANCES), source="aten/src/ATen/native/ReduceOps.cpp, std_var_out")
def variance(chip: Chip, out: Any, tensor: Any, dim: Any = None, **_: Any) -> Course:
    """Of complex numbers those of real and imaginary parts, one after the other, ahead of the results."""
    chip, axes = chip, axes_of(dim)
    if not tensor.is_complex():
        return course(chip, tensor, axes, tensor.dtype, welford(tensor.dtype))
    outs = out if isinstance(out, (tuple, list)) else (out,)
    part = part_of(tensor)
    own = [Alloc(each.numel() * part.itemsize) for each in outs]
    of_part = joined(own, course(chip, part, axes, part.dtype, welford(part.dtype)))
    return joined(of_part, of_part, results(out))


@scratch("cuda", "aten::argmax", "aten::argmin", source=SOURCE)
def place_of_extreme(chip: Chip, out: Any, tensor: Any, dim: int | None = None, keepdim: bool = False) -> Course:
    """A copy in a row, if all elements are reduced and do not lie in one."""
    copied = () if dim is not None else copies(tensor)
    read = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") if copied else tensor
    staging = course(chip, read, axes_of(dim), out.dtype, _indexed(tensor.dtype))
    return joined(results(out), copied, staging)


@scratch("cuda", "aten::max", "aten::min", "aten::aminmax", source=SOURCE)
def extremes(chip: Chip, out: Any, tensor: Any, *, dim: int | None = None, **_: Any) -> Course:
    """A contiguous copy, if all elements are reduced."""
    kind = (both_extremes if isinstance(out, (tuple, list)) else extreme)(tensor.dtype)
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    read = copy if dim is None else tensor
    staging = course(chip, read, axes_of(dim), tensor.dtype, kind)
    return joined(copies(tensor) if dim is None else (), staging)


HISTOGRAM = "aten/src/ATen/native/cuda/SummaryOps.cu"


@scratch("cuda", "aten::histc", source=HISTOGRAM, since="2.13")
def histogram(chip: Chip, out: Any, tensor: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Course:
    """The least and the largest element, where no range is given; torch 2.11 looks for one after the other."""
    if min != max or not tensor.numel():
        return ()
    number = Alloc(tensor.element_size())
    return joined((Result(0), number, number), extremes(chip, (out, out), tensor))


LAST_OFFSET = 2**31 - 1
"""Largest offset within 32-bit indexing."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction's axes, fastest first, with strides in bytes; the output's stride is 0 on reduced axes."""

    shape: tuple[int, ...]
    output: tuple[int, ...]
    input: tuple[int, ...]
    offset: int
    """Offset of the input in its storage, in elements."""

    @property
    def numel(self) -> int:
        """Number of input elements."""
        return prod(self.shape)

    @property
    def num_reduced(self) -> int:
        """Number of reduced axes, which come first."""
        return self.output.count(0)

    @property
    def num_outputs(self) -> int:
        """Number of output elements."""
        return prod(size for size, stride in zip(self.shape, self.output) if stride or size == 1)

    def parts(self) -> Iterator[Reduction]:
        """Yield the parts that fit 32-bit indexing, in the order they are reduced."""
        waiting = [self]
        while waiting:
            part = waiting.pop()
            if part.has_short_offsets:
                yield part
            else:
                waiting.extend(reversed(part._halves()))

    @property
    def has_short_offsets(self) -> bool:
        """Whether all offsets fit 32-bit indexing."""
        reaches = [1 + sum((n - 1) * s for n, s in zip(self.shape, strides)) for strides in (self.output, self.input)]
        return self.numel <= LAST_OFFSET and max(reaches) <= LAST_OFFSET

    def _halves(self) -> tuple[Reduction, Reduction]:
        extents = [
            ((size - 1) * max(self.output[axis], self.input[axis]), axis) for axis, size in enumerate(self.shape)
        ]
        axis = max(extents)[1]
        first = self.shape[axis] // 2
        sizes = (first, self.shape[axis] - first)
        left, right = (replace(self, shape=(*self.shape[:axis], n, *self.shape[axis + 1 :])) for n in sizes)
        return left, right


def reduction(tensor: Any, axes: Collection[int], out_itemsize: int, itemsize: int | None = None) -> Reduction:
    """Return the reduction of a tensor over some axes (none means all) into a contiguous result.

    With an ``itemsize``, a copy in another dtype is reduced.

    >>> import torch
    >>> reduction(torch.empty(6, 5), [0], 4)
    Reduction(shape=(6, 5), output=(0, 4), input=(20, 4), offset=0)
    >>> reduction(torch.empty(6, 5), [], 4).shape
    (30,)
    """
    shape = tuple(tensor.shape)
    reduced = {axis % len(shape) for axis in axes} if axes and shape else set(range(len(shape)))
    strides = tensor.stride() if itemsize is None else strides_of_copy(shape, tensor.stride())
    itemsize = itemsize or tensor.element_size()
    inputs = [stride * itemsize for stride in strides]
    outputs, step = [0] * len(shape), out_itemsize
    for axis in range(len(shape) - 1, -1, -1):
        if axis not in reduced:
            outputs[axis] = step
            step *= shape[axis]
    order = _ordered(shape, outputs, inputs)
    arranged = [[values[axis] for axis in order] for values in (shape, outputs, inputs)]
    sizes, written, read = map(tuple, _joined(*arranged))
    return Reduction(sizes, written, read, tensor.storage_offset())


def _ordered(shape: tuple[int, ...], outputs: list[int], inputs: list[int]) -> list[int]:
    """Order the axes by the output's strides, then the input's; by insertion sort, as not all axes compare."""
    order = list(range(len(shape) - 1, -1, -1))
    for index in range(1, len(order)):
        later = index
        for earlier in range(index - 1, -1, -1):
            compared = _compare(order[earlier], order[later], shape, outputs, inputs)
            if compared > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
            elif compared < 0:
                break
    return order


def _compare(first: int, second: int, shape: tuple[int, ...], outputs: list[int], inputs: list[int]) -> int:
    """Return 1 if the second axis belongs before the first, -1 if after, 0 if undecided."""
    for strides in (outputs, inputs):
        a, b = strides[first], strides[second]
        if strides is outputs and (a == 0) != (b == 0):
            return 1 if b == 0 else -1
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[first] > shape[second]:
            return 1
    return 0


def _joined(shape: list[int], outputs: list[int], inputs: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Merge axes that are contiguous to each other in both tensors."""
    if len(shape) < 2:
        return shape, outputs, inputs
    last = 0
    for axis in range(1, len(shape)):
        inner, outer = shape[last], shape[axis]
        follows = all(inner * strides[last] == strides[axis] for strides in (outputs, inputs))
        if inner == 1 or outer == 1 or follows:
            if inner == 1:
                outputs[last], inputs[last] = outputs[axis], inputs[axis]
            shape[last] *= outer
        else:
            last += 1
            shape[last], outputs[last], inputs[last] = outer, outputs[axis], inputs[axis]
    return shape[: last + 1], outputs[: last + 1], inputs[: last + 1]
