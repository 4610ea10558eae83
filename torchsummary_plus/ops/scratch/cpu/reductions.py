"""Scratch memory of reductions on the CPU: the input in another dtype, and partial results of threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import Any

import torch

from ....live.versions import since
from ...processor import is_half
from ...strides import strides_of_copy
from ..registry import ALL_RESULTS, AtMost, Phase, scratch
from ..sizes import INT64, NATIVE, elements, itemsize, nbytes, scalar
from .pointwise import cast_bytes
from .transposing import copied_in_turn

REDUCED = f"{NATIVE}ReduceOps.cpp; ReduceOpsUtils.h, make_reduction_from_out_ty"
GRAIN = 32768
"""Elements from which a loop is split among threads: at::internal::GRAIN_SIZE."""


def partials(x: Any, out: Any, size: int | None = None) -> int:
    """Return the bytes of one partial result per thread, for a single result of many elements.

    ``size`` is the bytes of one, by default of an element of the result.
    Source: aten/src/ATen/TensorIteratorReduce.cpp, ``two_pass_reduction``.
    """
    return thread_sums(elements(x), itemsize(out) if size is None else size) if elements(out) == 1 else 0


def thread_sums(count: int, size: int) -> int:
    """Return the bytes of one partial result of ``size`` bytes per thread, if ``count`` elements are split."""
    threads = torch.get_num_threads()
    return 0 if threads == 1 or count < GRAIN else threads * size


@scratch("cpu", "aten::logsumexp", source=f"{NATIVE}ReduceOps.cpp, logsumexp_out_impl", band=0.0)
def _logsumexp(out: Any, x: Any, *_: Any) -> int:
    """The exponentials and the maxima by which they are scaled; integers are cast first."""
    size = int(out.dtype.to_real().itemsize) if out.dtype.is_complex else itemsize(out)
    summed = elements(x) * itemsize(out) + elements(out) * size + partials(x, out)
    return _converted(out, x) + max(summed, 0 if x.dim() else size + 1 + cast_bytes(inf, out.dtype))


@scratch("cpu", *(f"aten::{name}" for name in ("prod", "prod.dim_int", "amax", "all", "all.dim", "all.dims",
                                               "any", "any.dim", "any.dims")),
         source=REDUCED, band=0.0)  # fmt: skip
def _reduction(out: Any, x: Any, *_: Any, **kwargs: Any) -> int:
    return _converted(out, x) + partials(x, out)


@scratch("cpu", "aten::amin", source=f"{NATIVE}cpu/ReduceOpsKernel.cpp, min_values_kernel_impl", band=0.0)
def _least(out: Any, x: Any, *_: Any) -> int:
    """Threads that share int64 elements keep their partial results in registers."""
    return 0 if x.dtype is torch.int64 else partials(x, out)


@scratch("cpu", "aten::max", "aten::min", "aten::aminmax", source=f"{NATIVE}cpu/ReduceAllOpsKernel.cpp", band=0.0)
def _extremes(out: Any, x: Any, *, dim: Any = None, **_: Any) -> int:
    """A contiguous copy, if all elements are reduced."""
    return copied_in_turn(x)[1] if dim is None else 0


@scratch("cpu", "aten::argmax", "aten::argmin", source=f"{NATIVE}ReduceOps.cpp, argmax_argmin_impl", band=0.0)
def _place(out: Any, x: Any, dim: Any = None, *_: Any) -> int:
    """A flat copy, if all elements are compared and do not follow one another at equal distances in memory."""
    return copied_in_turn(x)[1] if dim is None and not is_flat(x) else 0


def is_flat(x: Any) -> bool:
    """Whether ``x.reshape(-1)`` is a view."""
    axes = [(int(size), stride) for size, stride in zip(x.shape, x.stride()) if size != 1]
    return all(before == size * stride for (_, before), (size, stride) in pairwise(axes))


@scratch("cpu", "aten::nansum", source=f"{NATIVE}ReduceOps.cpp, nansum_out", band=0.0)
def _sum_of_numbers(out: Any, x: Any, *args: Any, **kwargs: Any) -> int:
    """Integers as :func:`sum_bytes`; for an integer result, the input without its NaNs as well."""
    if not x.dtype.is_floating_point:
        return int(sum_bytes(out, x, *args, **kwargs))
    return _converted(out, x) + partials(x, out) + (0 if out.dtype.is_floating_point else nbytes(x))


NORMS = ("linalg_vector_norm", *(f"norm.{kind}" for kind in ("Scalar", "ScalarOpt_dim", "ScalarOpt_dtype")),
         "norm.ScalarOpt_dim_dtype")  # fmt: skip


@scratch("cpu", *(f"aten::{name}" for name in NORMS), source=f"{NATIVE}LinearAlgebra.cpp, linalg_vector_norm_out",
         band=0.0)  # fmt: skip
def _norm(out: Any, x: Any, p: Any = 2, *_: Any, dtype: Any = None, **__: Any) -> int:
    """The input in another dtype; norms of single numbers are absolute values, or of order 0 comparisons with 0."""
    single = 0
    if elements(out) == elements(x):
        single = scalar(x) if p is not None and not p else nbytes(x) * x.dtype.is_complex
    return single + (0 if dtype in (None, x.dtype) else elements(x) * int(dtype.itemsize))


@scratch("cpu", "aten::sum", "aten::sum.dim_IntList",
         source=f"{NATIVE}ReduceOps.cpp, sum_out and should_use_acc_buffer", band=0.0)  # fmt: skip
def sum_bytes(out: Any, x: Any, dims: Any = None, *_: Any, **kwargs: Any) -> int:
    """In another dtype; half precision in float32 if the summed axes of the input, or of its cast, lie apart."""
    if is_half(out.dtype) and sums_apart(x, dims, x.dtype is not out.dtype):
        return _converted(out, x) + in_float(x, out) + partials(x, out, 4)
    return _converted(out, x) + partials(x, out)


@scratch("cpu", "aten::count_nonzero", "aten::count_nonzero.dim_IntList",
         source=f"{NATIVE}TensorAdvancedIndexing.cpp, count_nonzero", band=0.0)  # fmt: skip
def _count(out: Any, x: Any, dims: Any = None) -> int | AtMost:
    """Along an axis, whether each element is nonzero, as a bool and as an integer.

    Torch 2.4 compares booleans too; 2.6 does not, and 2.5 was not measured.
    """
    if dims is None or dims == []:
        return 0
    counts = INT64 * elements(x) + partials(x, out)
    if x.dtype is not torch.bool or not since("2.5"):
        return counts + elements(x)
    return counts if since("2.6") else AtMost(counts + elements(x))


def in_float(x: Any, out: Any) -> int:
    """Return the bytes of input and result in float32, in which half precision is summed."""
    return 4 * (elements(x) + elements(out))


def sums_apart(x: Any, dims: Any = None, is_copied: bool = False) -> bool:
    """Whether the summed axes of a tensor, or of its copy, cannot be traversed as one."""
    axes = range(x.dim()) if not dims or not x.dim() else [dim % x.dim() for dim in dims]
    return axes_apart(x.shape, strides_of_copy(x.shape, x.stride()) if is_copied else x.stride(), axes)


def axes_apart(shape: Sequence[int], strides: Sequence[int], dims: Iterable[int]) -> bool:
    """Whether some axes of a tensor with a shape and strides cannot be traversed as one."""
    axes = sorted((strides[dim], int(shape[dim])) for dim in dims if shape[dim] > 1)
    return any(stride * size != after for (stride, size), (after, _) in pairwise(axes))


def _converted(out: Any, x: Any) -> int:
    """Return the bytes of the input in the result's dtype."""
    return 0 if x.dtype is out.dtype else elements(x) * itemsize(out)


@scratch("cpu", "aten::mean", "aten::mean.dim", source=f"{NATIVE}ReduceOps.cpp, mean_out", band=0.0)
def _mean(out: Any, x: Any, *_: Any, **kwargs: Any) -> int:
    return mean_bytes(out, x)


def mean_bytes(out: Any, x: Any) -> int:
    """Return the bytes of a mean: the sum and then its divisor; half precision is computed in float32."""
    if is_half(out.dtype):
        summed = cast_bytes(x, torch.float32) + partials(x, out, 4)
        return 4 * elements(out) + max(summed, INT64 + 4)
    return max(_converted(out, x) + partials(x, out), scalar(out))


@scratch("cpu", "aten::var", "aten::var.correction", "aten::std", "aten::std.correction",
         source=f"{NATIVE}ReduceOps.cpp, std_var_all_reduce_cpu", band=0.0)  # fmt: skip
def _deviation(out: Any, x: Any, *_: Any, **kwargs: Any) -> int | tuple[Phase, ...]:
    """The mean, if all elements are reduced to a single number and it is not in half precision.

    Complex numbers have a variance for each part, before the result.
    """
    mean = elements(out) == 1 and not is_half(x.dtype)
    if not x.dtype.is_complex:
        return itemsize(out) + mean_bytes(out, x) if mean else 0
    of_parts = 2 * nbytes(out)
    averaged = itemsize(out) + max(partials(x, out), scalar(out)) if mean else 0
    return Phase(0, of_parts + averaged), Phase(ALL_RESULTS, of_parts)


@scratch("cpu", "aten::var_mean.correction", "aten::std_mean.correction",
         source=f"{NATIVE}ReduceOps.cpp, std_var_mean_out", band=0.0)  # fmt: skip
def _deviation_and_mean(out: Any, x: Any, *_: Any, **kwargs: Any) -> int:
    """Of complex numbers, the variance and the mean of each part."""
    return 4 * nbytes(out[0]) if x.dtype.is_complex else 0
