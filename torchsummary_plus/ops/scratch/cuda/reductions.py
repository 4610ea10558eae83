"""CUDA: staging buffers of reductions in which several thread blocks share an output, and losses.

``TensorIterator`` orders and merges a reduction's axes before it chooses a kernel. Source:
aten/src/ATen/TensorIterator.cpp, ``reorder_dimensions``, ``coalesce_dimensions``, ``can_use_32bit_indexing``,
``get_dim_to_split`` and ``SplitUntil32Bit``; aten/src/ATen/native/ReduceOpsUtils.h, ``review_reduce_result``; Loss.cpp;
aten/src/ATen/native/cuda/Reduce.cuh, ``setReduceConfig`` and ``gpu_reduce_kernel``; each reduction's
accumulator type and vectorised loads: Reduce{SumProd,Moment,Norm,MinValues,MaxValues,AMinMax,ArgMax,ArgMin,
Logic}Kernel.cu.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import torch

from ....data.capability import Chip
from ....data.units import ceil_div, power_of_two_below
from ...backends import HALVES
from ...shapes.registry import order_of_axes, preserved_strides
from ..allocations import Allocations, copies, joined
from ..registry import OLDEST, Alloc, AtMost, Result, Timeline, scratch

WARP = 32
FEWEST, MOST = 16, 256
"""Values reduced per thread, at least and at most, where blocks share outputs."""
LAST_OFFSET = 2**31 - 1
"""Largest offset within 32-bit indexing."""


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


def extreme(dtype: torch.dtype) -> Kind:
    """Return the kind of a maximum or minimum, or of ``any`` and ``all``."""
    return Kind(dtype.itemsize, 4, dtype)


def _indexed(dtype: torch.dtype) -> Kind:
    """Return the kind of an ``argmax``, or of extremes with indices: a value and its index, aligned to 8."""
    return Kind(16, 4, dtype)


def staged(chip: Chip, what: Reduction, kind: Kind) -> tuple[int, int] | None:
    """Return the bytes of one launch's buffer and semaphores; None if no output is shared among blocks."""
    outputs, size, most = what.num_outputs, kind.dtype.itemsize, 256 if kind.dtype is torch.complex128 else 512
    inputs = what.numel // outputs
    on_fastest = what.num_reduced == len(what.shape) or what.input[0] < what.input[what.num_reduced]
    across, down = (inputs, outputs) if on_fastest else (outputs, inputs)
    vector = 1  # Outputs per thread: up to 4 if outputs are dense and the input is aligned.
    is_dense = what.input[0 if on_fastest else what.num_reduced] == size
    if is_dense and not on_fastest:
        first = what.num_reduced
        others = [stride // size for axis, stride in enumerate(what.input) if axis != first]
        vector = gcd(4, what.offset, what.shape[first], *others)
        across, most = across // vector, most // vector
    elif is_dense and across >= 128 and what.num_reduced == 1:
        across //= kind.vector
    across, down = (most if threads >= most else power_of_two_below(threads) for threads in (across, down))
    height = min(down, most // min(across, WARP))
    width = min(across, most // height)
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


def timeline(chip: Chip, tensor: Any, axes: Collection[int], out_dtype: torch.dtype, kind: Kind) -> Timeline:
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
    return steps.timeline()


def sum_course(chip: Chip, tensor: Any, axes: Collection[int]) -> Timeline:
    """Return the allocations of a sum in the tensor's own dtype, besides its result."""
    return timeline(chip, tensor, axes, tensor.dtype, summing(tensor.dtype))


def axes_of(dim: Any) -> list[int]:
    """Return the axes that a ``dim`` argument names; an empty list stands for all."""
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


def _register(
    operators: Collection[str], kind_of: Callable[[torch.dtype], Kind], dim_at: int | None, casts: bool = False
) -> None:
    """Register reductions whose axes are at one position among the arguments after the tensor."""

    @scratch("cuda", *(f"aten::{name}" for name in operators))
    def formula(chip: Chip, out: Any, tensor: Any, *args: Any, **kwargs: Any) -> Timeline:
        dim = kwargs.get("dim") if dim_at is None or len(args) <= dim_at else args[dim_at]
        result = (out[0] if isinstance(out, (tuple, list)) else out).dtype
        lowered = tensor.dtype in HALVES and result is torch.float32
        becomes_real = tensor.is_complex() and not result.is_complex
        dtype = tensor.dtype if lowered or becomes_real or not casts else result
        return timeline(chip, tensor, axes_of(dim), result, kind_of(dtype))


_register(("sum", "mean", "prod", "nansum"), summing, None, casts=True)
_register(("sum.dim_IntList", "mean.dim", "prod.dim_int"), summing, 0, casts=True)
_register(("linalg_vector_norm",), magnitudes, 1, casts=True)
_register(("norm.ScalarOpt_dim",), magnitudes, 1)
_register(("norm.Scalar",), magnitudes, None)
_register(("amax", "amin"), extreme, 0)
_register(("any", "all"), extreme, None)
_register(("any.dim", "all.dim", "any.dims", "all.dims"), extreme, 0)
_register(("max.dim", "min.dim"), _indexed, 0)


@scratch(
    "cuda",
    *(f"aten::{name}.correction" for name in ("var", "std", "var_mean", "std_mean")),
)
def variance(chip: Chip, out: Any, tensor: Any, dim: Any = None, **_: Any) -> Timeline | AtMost:
    """As a sum; of complex numbers those of real and imaginary parts, one after the other, have only a bound."""
    if tensor.is_complex():
        return AtMost(4 * tensor.numel() * tensor.element_size())
    # Mean, deviation and count (as int32 and as float; SharedReduceOps.h, ``WelfordData``), padded beside doubles.
    kind = Kind(32 if tensor.dtype is torch.float64 else 16, 2, tensor.dtype)
    return timeline(chip, tensor, axes_of(dim), tensor.dtype, kind)


@scratch("cuda", "aten::argmax", "aten::argmin")
def place_of_extreme(chip: Chip, out: Any, tensor: Any, dim: int | None = None, keepdim: bool = False) -> Timeline:
    """A copy in a row, if all elements are reduced and do not lie in one."""
    copied = () if dim is not None else copies(tensor)
    read = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") if copied else tensor
    staging = timeline(chip, read, axes_of(dim), out.dtype, _indexed(tensor.dtype))
    return joined(copied, staging)


@scratch("cuda", "aten::max", "aten::min", "aten::aminmax")
def extremes(chip: Chip, out: Any, tensor: Any, *, dim: int | None = None, **_: Any) -> Timeline:
    """A contiguous copy, if all elements are reduced; ``aminmax`` accumulates both values."""
    kind = extreme(tensor.dtype)
    if isinstance(out, (tuple, list)):
        kind = replace(kind, accumulated=2 * kind.accumulated)
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    staging = timeline(chip, copy if dim is None else tensor, axes_of(dim), tensor.dtype, kind)
    return joined(copies(tensor) if dim is None else (), staging)


# Losses, most of which torch computes element by element and then averages or adds up

MEAN = 1
"""``Reduction::Mean``; 0 is none, 2 sum."""


def pairs(x: Any, other: Any) -> int:
    """Return the number of pairs of elements, one tensor broadcast to the other."""
    return int(prod(torch.broadcast_shapes(x.shape, other.shape)))


def _reduced(chip: Chip, out: Any, count: int) -> Timeline:
    """Return the staging buffers of a mean or sum of ``count`` losses."""
    losses = torch.empty(count, dtype=out.dtype, device="meta")
    return sum_course(chip, losses, [0])


# The result has room for all losses before it is resized to one element; its storage stays large.


@scratch("cuda", "aten::mse_loss", "aten::smooth_l1_loss")
def squared_loss(chip: Chip, out: Any, x: Any, target: Any, reduction: int = MEAN, *_: Any) -> Timeline:
    """A loss per element besides the result's storage, then the mean's buffers."""
    if not reduction:
        return ()
    count = pairs(x, target)
    losses = count * out.element_size()
    return joined((Result(0, losses), Alloc(losses)), _reduced(chip, out, count))


@scratch("cuda", "aten::binary_cross_entropy")
def cross_entropy(chip: Chip, out: Any, x: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> Timeline:
    """The losses are in the result's storage; the mean is copied there."""
    if not reduction:
        return ()
    return joined((Result(0, x.nbytes), Alloc(out.element_size())), _reduced(chip, out, x.numel()))


@scratch("cuda", "aten::binary_cross_entropy_with_logits")
def cross_entropy_with_logits(
    chip: Chip, out: Any, x: Any, target: Any, weight: Any = None, pos_weight: Any = None,
    reduction: int = MEAN,
) -> Timeline:  # fmt: skip
    """``log_sigmoid``, which ``pos_weight`` multiplies by a weight per element; then ``1 - target``, the later loss."""
    steps = Allocations()
    steps.buffer(x.nbytes)
    if pos_weight is not None:
        less_one = steps.buffer(pos_weight.nbytes)
        dtype = torch.promote_types(pos_weight.dtype, target.dtype) if pos_weight.dim() else target.dtype
        log_weight = steps.buffer(pairs(pos_weight, target) * dtype.itemsize)
        steps.free(log_weight, less_one)
    if reduction:
        steps.buffer(target.nbytes)
    steps.result(0)
    if reduction:
        steps.append(_reduced(chip, out, x.numel()))
    return steps.timeline()


# The buffer, which only the CPU's backward reads, is empty.
scratch("cuda", "aten::log_sigmoid_forward", since=OLDEST)(lambda *_: (Result(0), Result(1, 0)))


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
        """Yield the parts that fit 32-bit indexing, in the order they are reduced; others are halved."""
        if self.has_short_offsets:
            yield self
            return
        strides = map(max, self.output, self.input)
        _, axis = max(((size - 1) * stride, axis) for axis, (size, stride) in enumerate(zip(self.shape, strides)))
        first = self.shape[axis] // 2
        for size in (first, self.shape[axis] - first):
            yield from replace(self, shape=(*self.shape[:axis], size, *self.shape[axis + 1 :])).parts()

    @property
    def has_short_offsets(self) -> bool:
        """Whether all offsets fit 32-bit indexing."""
        farthest = max(sum((n - 1) * s for n, s in zip(self.shape, each)) for each in (self.output, self.input))
        return self.numel <= LAST_OFFSET and farthest < LAST_OFFSET


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
    strides = tensor.stride() if itemsize is None else preserved_strides(tensor)
    itemsize = itemsize or tensor.element_size()
    inputs = [stride * itemsize for stride in strides]
    outputs, step = [0] * len(shape), out_itemsize
    for axis in range(len(shape) - 1, -1, -1):
        if axis not in reduced:
            outputs[axis] = step
            step *= shape[axis]
    sizes: list[int] = []
    written: list[int] = []
    read: list[int] = []
    for axis in order_of_axes(shape, (outputs, inputs), reduced):
        size, strides = shape[axis], (outputs[axis], inputs[axis])
        if sizes and (sizes[-1] == 1 or size == 1 or strides == (sizes[-1] * written[-1], sizes[-1] * read[-1])):
            if sizes[-1] == 1:  # Axes that are contiguous to each other in both tensors are one.
                written[-1], read[-1] = strides
            sizes[-1] *= size
        else:
            sizes.append(size)
            written.append(strides[0])
            read.append(strides[1])
    return Reduction(tuple(sizes), tuple(written), tuple(read), tensor.storage_offset())
