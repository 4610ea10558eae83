"""Scratch memory of CPU kernels other than products, convolutions, recurrent layers and plain copies."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ....live.versions import since
from ...processor import is_half, multiplies
from ...strides import contiguous
from ..registry import ALL_RESULTS, AtMost, Phase, reserve, scratch
from ..sizes import INT64, NATIVE, copied, elements, itemsize, nbytes, scalar, suggested
from .in_place import written
from .pointwise import cast_bytes
from .transposing import copied_in_turn, turned_block


@scratch("cpu", "aten::native_layer_norm_backward", source=f"{NATIVE}cpu/layer_norm_kernel.cpp", band=0.0)
def _layer_norm_backward(
    out: Any, grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, wanted: Any
) -> int:
    """Two sums per thread, in the input's dtype, if the gradient of weight or bias is wanted."""
    sums = 2 * torch.get_num_threads() * prod(shape) * itemsize(x) if wanted[1] or wanted[2] else 0
    return copied(grad) + copied(x) + copied(weight) + copied(bias) + sums


@reserve("cpu", "aten::native_layer_norm", source=f"{NATIVE}layer_norm.cpp", band=0.0)
def _layer_norm_statistics(out: Any, x: Any, shape: Any, weight: Any, *_: Any) -> tuple[int | None, ...]:
    """Mean and rstd have the weight's dtype on the CPU, else the input's."""
    return _statistics(out, x if weight is None else weight)


@reserve("cpu", "aten::native_group_norm", source=f"{NATIVE}group_norm.cpp", band=0.0)
def _group_norm_statistics(out: Any, x: Any, weight: Any, *_: Any) -> tuple[int | None, ...]:
    """Mean and rstd have the weight's dtype on the CPU, else the input's."""
    return _statistics(out, x if weight is None else weight)


def _statistics(out: Any, kind: Any) -> tuple[int | None, ...]:
    return None, *(itemsize(kind) * elements(result) for result in out[1:])


@scratch("cpu", "aten::native_group_norm", source=f"{NATIVE}cpu/group_norm_kernel.cpp", band=0.0)
def _group_norm(
    out: Any, x: Any, weight: Any, bias: Any, n: int, channels: int, size: int, groups: int, *_: Any
) -> int:
    """Copies of strided operands; in channels-last, two sums per channel and sample, for large images per thread."""
    copies = copied(x, suggested(x)) + copied(weight) + copied(bias)
    if suggested(x) is torch.contiguous_format:
        return copies
    large = size >= LARGE_IMAGE
    sums = channels * torch.get_num_threads() + groups if large else channels
    return copies + 2 * n * sums * max(4, itemsize(x))


LARGE_IMAGE = 1024
"""Pixels above which threads share an image."""


@scratch("cpu", "aten::native_group_norm_backward", source=f"{NATIVE}cpu/group_norm_kernel.cpp", band=0.0)
def _group_norm_backward(
    out: Any, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, *_: Any
) -> int:
    """Copies of operands in another layout than the input's, and two sums per channel and sample."""
    layout = suggested(x)
    copies = copied(grad, layout) + copied(x, layout) + copied(mean) + copied(rstd) + copied(weight)
    return copies + 2 * n * c * max(4, itemsize(mean))


def _same_layout(a: Any, b: Any) -> Any:
    """Return the memory format that both tensors share, or None."""
    for layout in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        if layout is not torch.contiguous_format and a.dim() != (4 if layout is torch.channels_last else 5):
            continue
        if a.is_contiguous(memory_format=layout) and b.is_contiguous(memory_format=layout):
            return layout
    return None


def _row(x: Any) -> int:
    """Return the bytes of one number per channel, at least float32."""
    return int(x.shape[1]) * max(4, itemsize(x))


BATCH_NORM = f"{NATIVE}Normalization.cpp and cpu/batch_norm_kernel.cpp"


@scratch("cpu", "aten::native_batch_norm", source=BATCH_NORM, band=0.0)
def _batch_norm(
    out: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> int | tuple[Phase, ...]:
    """Mean and variance while being accumulated, then a scale and an offset per channel.

    A strided input's mean is divided by a number, before the third result is allocated; in half precision, the input
    is cast for it.
    """
    layout = _same_layout(x, x)
    row = _row(x)
    if layout is None:
        return (Phase(2, _mean_per_channel(x, weight)),) if training else 3 * row
    by_channel = layout is not torch.contiguous_format or prod(x.shape[2:]) == 1
    sums = torch.get_num_threads() * row if training and by_channel else 0
    return 2 * row + sums


def _mean_per_channel(x: Any, weight: Any) -> int:
    """The number that sums are divided by, or the input in float32, with its sums if the mean is in half precision."""
    if not is_half(x.dtype):
        return scalar(x)
    sums = int(x.shape[1]) if weight is None or is_half(weight.dtype) else 0
    return torch.float32.itemsize * (elements(x) + sums)


@reserve("cpu", "aten::native_batch_norm", "aten::_native_batch_norm_legit", source=BATCH_NORM, band=0.0)
def _batch_norm_statistics(
    out: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> tuple[int | None, ...]:
    """The statistics have the input's dtype, or float32 if a parameter has (``param_scalar_type``)."""
    if not training:
        return None, 0, 0
    size = _statistics_itemsize(x, weight, bias, mean, var)
    return None, *(size * elements(result) if is_half(x.dtype) and size < 4 else None for result in out[1:])


def _statistics_itemsize(x: Any, *parameters: Any) -> int:
    is_mixed = any(tensor is not None and tensor.dtype is torch.float32 for tensor in parameters)
    return 4 if is_mixed else itemsize(x)


@scratch("cpu", "aten::_batch_norm_with_update", source=BATCH_NORM, band=0.0)
def _batch_norm_updating(out: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *_: Any) -> int | AtMost:
    """As without the update; in half precision, other layouts than row-major with positions are bounded only."""
    normed: int = _batch_norm(out, x, weight, bias, mean, var, True)
    is_plain = x.is_contiguous() and prod(x.shape[2:]) > 1
    return normed if is_plain or not is_half(x.dtype) else AtMost(normed + 4 * nbytes(x))


@reserve("cpu", "aten::_batch_norm_with_update", source=BATCH_NORM, band=0.0)
def _statistics_updating(
    out: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *_: Any
) -> tuple[int | None, ...]:
    sizes: tuple[int | None, ...] = _batch_norm_statistics(out[:3], x, weight, bias, mean, var, True)
    return sizes


@scratch("cpu", "aten::native_batch_norm_backward", "aten::batch_norm_backward", source=BATCH_NORM, band=0.0)
def _batch_norm_backward(
    out: Any, grad: Any, x: Any, weight: Any, mean: Any, var: Any, mu: Any, rstd: Any, training: bool, *_: Any
) -> int:
    """The fast kernels allocate the input's gradient a second time and drop it; the per-thread sums follow.

    The slow one computes a number per channel in the dtype of the statistics.
    """
    layout = _same_layout(grad, x)
    if layout is None or suggested(grad) is not suggested(x):
        return int(x.shape[1]) * _statistics_itemsize(x, weight, mean, var)
    by_channel = layout is not torch.contiguous_format or prod(x.shape[2:]) == 1
    sums = (2 * torch.get_num_threads() + (not training)) * _row(x) if by_channel else 0
    return max(nbytes(x), sums)


@scratch("cpu", "aten::gelu_backward", source=f"{NATIVE}Activation.cpp, use_mkldnn_gelu", band=0.0)
def _gelu_backward(out: Any, grad: Any, x: Any, approximate: str = "none") -> int:
    """oneDNN's kernel, for float32 and for the halves that the processor has it for, needs contiguous tensors."""
    has_kernel = x.dtype is torch.float32 or multiplies(x.dtype)
    fast = approximate == "none" and x.is_contiguous() and has_kernel and elements(x) > 1
    return copied(grad) + copied(out) if fast and torch.backends.mkldnn.enabled else 0


@scratch("cpu", "aten::_safe_softmax", source=f"{NATIVE}transformers/attention.cpp, _safe_softmax", band=0.0)
def _safe_softmax(out: Any, x: Any, dim: int, dtype: Any = None) -> int:
    """A contiguous copy for the softmax; then masks of -inf elements and of rows with nothing else, and a zero."""
    total = elements(x)
    return max(copied(x), total + total // int(x.shape[dim]) + itemsize(out))


@scratch("cpu", "aten::sort", "aten::sort.stable", source=f"{NATIVE}cpu/SortingKernel.cpp", band=0.0)
def _sort(out: Any, x: Any, *args: Any, **kwargs: Any) -> int:
    """The indices of one row."""
    dim = kwargs.get("dim", next((a for a in args if isinstance(a, int) and not isinstance(a, bool)), -1))
    return INT64 * int(x.shape[dim]) if x.dim() else 0


SELECTION = f"{NATIVE}Sorting.cpp"


@scratch("cpu", "aten::kthvalue", source=SELECTION, band=0.0)
def _kthvalue(out: Any, x: Any, *_: Any) -> int:
    return nbytes(x) + INT64 * elements(x) if x.dim() else 0


@scratch("cpu", "aten::median", "aten::nanmedian", source=SELECTION, band=0.0)
def _median(out: Any, x: Any) -> int:
    return nbytes(x)


@scratch("cpu", "aten::median.dim", "aten::nanmedian.dim", source=SELECTION, band=0.0)
def _median_of(out: Any, x: Any, dim: int, *_: Any) -> int:
    """A copy if the axis is not contiguous, made block by block of one matrix."""
    if not x.dim() or x.stride(dim) <= 1 or (x.shape[dim] == 1 and x.is_contiguous()):
        return 0
    return nbytes(x) + (turned_block(x) if x.dim() == 2 and x.is_contiguous() else 0)


@scratch("cpu", "aten::roll", source=f"{NATIVE}TensorTransformations.cpp", band=0.0)
def _roll(out: Any, x: Any, shifts: Any, dims: Any = ()) -> tuple[Phase, ...]:
    """One axis after another, each into a new tensor; the calls are nested. Without axes the input is made flat."""
    if dims:
        return (Phase(ALL_RESULTS, max(0, len(dims) - 1) * nbytes(x)),)
    copies, most = copied_in_turn(x)
    return Phase(0, most), Phase(ALL_RESULTS, copies)


@scratch("cpu", "aten::native_channel_shuffle", source=f"{NATIVE}cpu/ChannelShuffleKernel.cpp", band=0.0)
def _channel_shuffle(out: Any, x: Any, groups: int) -> int:
    return copied(x)


@scratch("cpu", "aten::addr", source=f"{NATIVE}LinearAlgebra.cpp, build_addr_iter", band=0.0)
def _outer_product_added(out: Any, x: Any, a: Any, b: Any, **_: Any) -> int:
    """Operands of another dtype are cast, the first in the result's shape."""
    expanded = 0 if x.dtype is out.dtype else nbytes(out)
    return expanded + cast_bytes(a, out.dtype) + cast_bytes(b, out.dtype)


@scratch("cpu", "aten::repeat", source=f"{NATIVE}TensorShape.cpp, repeat", band=0.0)
def _repeat(out: Any, x: Any, repeats: Any) -> int:
    """Shapes and strides as integer tensors, since torch 2.10, unless the result is empty."""
    return 4 * INT64 * len(repeats) if since("2.10") and 0 not in repeats else 0


@scratch("cpu", "aten::tril", "aten::triu", source=f"{NATIVE}BatchLinearAlgebra.cpp, checkTrilTriuBatchContiguous",
         band=0.0)  # fmt: skip
def _triangle(out: Any, x: Any, *_: Any) -> int:
    return triangle_of(x.shape, x.stride()) * itemsize(x)


def triangle_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the elements that are copied for triangles of matrices: none if these follow one another without gaps."""
    following = prod(shape[-2:])
    for size, stride in zip(reversed(shape[:-2]), reversed(strides[:-2])):
        if stride != following:
            row_major = contiguous(shape)
            return 0 if all(n == 1 or a == b for n, a, b in zip(shape, strides, row_major)) else prod(shape)
        following *= size
    return 0


@scratch("cpu", "aten::tril_", "aten::triu_", source=f"{NATIVE}BatchLinearAlgebra.cpp, checkTrilTriuBatchContiguous",
         band=0.0)  # fmt: skip
def _triangle_in_place(out: Any, x: Any, *_: Any) -> int:
    """A result apart if axes of length 1 have unusual strides, or matrices of a batch do not follow one another.

    Then these are copied, too. Batches of one axis may have any stride.
    """
    if x.is_contiguous():
        return 0 if x.stride() == contiguous(x.shape) else nbytes(x)
    following = int(prod(x.shape[-2:]))
    for axis in range(x.dim() - 3, -1, -1) if x.dim() > 3 else ():
        is_trivial = axis == 0 and (x.stride(0) == 0 or x.shape[0] == 1)
        if not is_trivial and x.stride(axis) != following:
            return 2 * nbytes(x)
        following *= int(x.shape[axis])
    return 0


@scratch("cpu", "aten::native_dropout", source=f"{NATIVE}Dropout.cpp", band=0.0)
def _native_dropout(out: Any, x: Any, p: float, train: Any) -> int:
    """The mask in the input's dtype, then the number by which the result is scaled."""
    return 0 if train is False else max(nbytes(x), cast_bytes(1.0, x.dtype))


@scratch("cpu", "aten::multinomial", source=f"{NATIVE}Distributions.cpp", band=0.0)
def _multinomial(out: Any, p: Any, samples: int, replacement: bool = False, **_: Any) -> int | AtMost:
    """Cumulative weights of a row; without replacement an exponential per weight, their maxima, and the checks.

    Of the checks two answers are kept, and since torch 2.13 the extremes, but the rows' sums, compared with 0, are not.
    Torch 2.4 kept none, and counted the rows in int64. Torch 2.6 keeps them, and divides as 2.4 does; 2.5 and 2.7 were
    not measured.
    """
    if replacement and samples > 1:
        return int(p.shape[-1]) * itemsize(p)
    vals = elements(out) * itemsize(p) if samples > 1 else 0
    sums = elements(p) // int(p.shape[-1])
    checked = sums * (itemsize(p) + 1) + scalar(p)
    if since("2.13"):
        return 2 * itemsize(p) + max(1 + nbytes(p) + vals + 1, 1 + checked, copied_in_turn(p)[1])
    extremes = 2 * itemsize(p) + 1 + max(scalar(p) + 1, copied_in_turn(p)[1])  # Each of a contiguous copy.
    newer = max(nbytes(p) + vals + 2, 1 + checked, extremes)
    if since("2.8"):
        return newer
    counted = sums * (itemsize(p) + 1) + max(scalar(p), (sums + 1) * INT64 if p.dim() > 1 else 0)
    is_dense = 1 + sum((size - 1) * stride for size, stride in zip(p.shape, p.stride())) == elements(p)
    in_order = copied(p) if is_dense else 0  # The exponentials, which lie as the weights do where these have no gaps.
    older = max(nbytes(p) + max(vals, in_order), counted, extremes)
    between = max(newer, nbytes(p) + in_order + 2)
    if since("2.6") and not since("2.7"):
        return between
    return AtMost(max(older, between)) if since("2.5") else older


@scratch("cpu", "aten::normal.Tensor_float", source=f"{NATIVE}DistributionTemplates.h", band=0.0)
def _normal_around(out: Any, mean: Any, *_: Any, **__: Any) -> int:
    """A tensor of the result's size, for the deviation that is one number."""
    return nbytes(out)


@scratch("cpu", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", source=f"{NATIVE}DistributionTemplates.h",
         band=0.0)  # fmt: skip
def _normal_by(out: Any, mean: Any, deviation: Any, *_: Any, **__: Any) -> int:
    """The least deviation, compared with 0; then a product and a sum in place."""
    checked = itemsize(deviation) + max(scalar(deviation) + 1, copied(deviation))
    of_tensors = [each for each in (mean, deviation) if isinstance(each, torch.Tensor)]
    return max(checked, *(written(out, operand) for operand in of_tensors))


@scratch("cpu", "aten::binomial", source=f"{NATIVE}Distributions.cpp, _s_binomial_cpu", band=0.0)
def _binomial(out: Any, count: Any, *_: Any, **__: Any) -> int:
    """Numbers of the counts' shape, if the probabilities have a larger one."""
    return elements(count) * itemsize(out) if elements(count) < elements(out) else 0
