"""Scratch memory of CPU kernels other than products, convolutions, recurrent layers and plain copies."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ....live.versions import since
from ...dtypes import result_type
from ...processor import is_half
from ..registry import ALL_RESULTS, AtMost, Phase, reserve, scratch
from ..sizes import INT64, NATIVE, copied, elements, itemsize, nbytes, scalar, suggested
from .copies import turned_block
from .pointwise import cast_bytes
from .reductions import mean_bytes


@scratch("cpu", "aten::native_layer_norm_backward", source=f"{NATIVE}cpu/layer_norm_kernel.cpp", band=0.0)
def _layer_norm_backward(
    out: Any, grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, wanted: Any
) -> int:
    """Two sums per thread, in the input's dtype, if the gradient of weight or bias is wanted."""
    sums = 2 * torch.get_num_threads() * prod(shape) * itemsize(x) if wanted[1] or wanted[2] else 0
    return copied(grad) + copied(x) + sums


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
    """In channels-last, two sums per channel and sample; for large images, per thread and group."""
    if suggested(x) is torch.contiguous_format:
        return 0
    large = size >= LARGE_IMAGE
    sums = channels * torch.get_num_threads() + groups if large else channels
    return 2 * n * sums * max(4, itemsize(x))


LARGE_IMAGE = 1024
"""Pixels above which threads share an image."""


@scratch("cpu", "aten::native_group_norm_backward", source=f"{NATIVE}cpu/group_norm_kernel.cpp", band=0.0)
def _group_norm_backward(
    out: Any, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, *_: Any
) -> int:
    """Two sums per channel and sample."""
    return 2 * n * c * max(4, itemsize(mean))


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
def _batch_norm(out: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any) -> int:
    """Mean and variance while being accumulated, then a scale and an offset per channel."""
    layout = _same_layout(x, x)
    row = _row(x)
    if layout is None:
        return 0 if training else 3 * row
    by_channel = layout is not torch.contiguous_format or prod(x.shape[2:]) == 1
    sums = torch.get_num_threads() * row if training and by_channel else 0
    return 2 * row + sums


@reserve("cpu", "aten::native_batch_norm", "aten::_native_batch_norm_legit", source=BATCH_NORM, band=0.0)
def _batch_norm_statistics(
    out: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> tuple[int | None, ...]:
    """The statistics have the input's dtype, or float32 if a parameter has (``param_scalar_type``)."""
    if not training:
        return None, 0, 0
    is_mixed = any(tensor is not None and tensor.dtype is torch.float32 for tensor in (weight, bias, mean, var))
    size = itemsize(x) if is_half(x.dtype) and not is_mixed else None
    return None, *(None if size is None else size * elements(result) for result in out[1:])


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
    """The fast kernels allocate the input's gradient a second time and drop it; the per-thread sums follow."""
    layout = _same_layout(grad, x)
    if layout is None or suggested(grad) is not suggested(x):
        return _row(x)
    by_channel = layout is not torch.contiguous_format or prod(x.shape[2:]) == 1
    sums = (2 * torch.get_num_threads() + (not training)) * _row(x) if by_channel else 0
    return max(nbytes(x), sums)


@scratch("cpu", "aten::gelu_backward", source=f"{NATIVE}Activation.cpp, use_mkldnn_gelu", band=0.0)
def _gelu_backward(out: Any, grad: Any, x: Any, approximate: str = "none") -> int:
    """oneDNN's kernel needs contiguous tensors."""
    fast = approximate == "none" and x.is_contiguous() and x.dtype is torch.float32 and elements(x) > 1
    return copied(grad) + copied(out) if fast else 0


@scratch("cpu", "aten::_safe_softmax", source=f"{NATIVE}transformers/attention.cpp, _safe_softmax", band=0.0)
def _safe_softmax(out: Any, x: Any, dim: int, dtype: Any = None) -> int:
    """Masks of -inf elements and of rows that hold nothing else, and a zero for those."""
    total = elements(x)
    return copied(x) + total + total // int(x.shape[dim]) + itemsize(out)


LOSS = f"{NATIVE}Loss.cpp"
MEAN = 1
"""``Reduction::Mean``; 0 is none, 2 sum."""


@scratch("cpu", "aten::mse_loss", "aten::smooth_l1_loss", source=LOSS, band=0.0)
def _squared_loss(out: Any, x: Any, target: Any, reduction: int = MEAN, *_: Any) -> int:
    """The loss per element, twice, once in the result's storage; before each, operands of another dtype are cast."""
    cast = _cast_to(out.dtype, x, target)
    if not reduction:
        return cast
    return 2 * cast + _paired(out, x, target) + _mean_of(out, reduction, _pairs(x, target))


def _cast_to(common: torch.dtype, *operands: Any) -> int:
    """Return the bytes of the operands that are cast to a dtype."""
    return sum(cast_bytes(operand, common) for operand in operands)


def _written_to(target: torch.dtype, *operands: Any) -> int:
    """Return the scratch of operands computed in their common dtype and written to a tensor of another one."""
    common = result_type(*operands)
    count = int(prod(torch.broadcast_shapes(*(operand.shape for operand in operands))))
    return _cast_to(common, *operands) + (0 if common is target else count * int(common.itemsize))


def _paired(out: Any, x: Any, target: Any) -> int:
    """Return the bytes of one loss per pair of elements."""
    return _pairs(x, target) * itemsize(out)


def _pairs(x: Any, target: Any) -> int:
    return int(prod(torch.broadcast_shapes(x.shape, target.shape)))


def _mean_of(out: Any, reduction: int, losses: int) -> int:
    """Return the scratch of the mean of some losses."""
    if reduction != MEAN:
        return 0
    return mean_bytes(out, torch.empty(losses, dtype=out.dtype, device="meta"))


@reserve("cpu", "aten::mse_loss", "aten::smooth_l1_loss", source=LOSS, band=0.0)
def _squared_loss_storage(out: Any, x: Any, target: Any, *_: Any) -> tuple[int, ...]:
    """The result is resized to one element; its storage stays large."""
    return (_paired(out, x, target),)


@scratch("cpu", "aten::huber_loss", source=LOSS, band=0.0)
def _huber_loss(out: Any, x: Any, target: Any, reduction: int = MEAN, *_: Any) -> tuple[Phase, ...]:
    """A loss per element, in the input's dtype; casts last until the end."""
    written = _written_to(x.dtype, x, target)
    if not reduction:
        return (Phase(ALL_RESULTS, written),)
    losses = nbytes(x) + _cast_to(result_type(x, target), x, target)
    return Phase(0, nbytes(x) + written), Phase(ALL_RESULTS, losses + _mean_of(out, reduction, elements(x)))


@scratch("cpu", "aten::binary_cross_entropy", source=LOSS, band=0.0)
def _cross_entropy(out: Any, x: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> int:
    return itemsize(out) + _mean_of(out, reduction, _pairs(x, target)) if reduction else 0


@scratch("cpu", "aten::soft_margin_loss", source=LOSS, band=0.0)
def _soft_margin(out: Any, x: Any, target: Any, reduction: int = MEAN) -> int:
    return itemsize(out) + _mean_of(out, reduction, _pairs(x, target)) if reduction else 0


@scratch("cpu", "aten::soft_margin_loss_backward", source=LOSS, band=0.0)
def _soft_margin_backward(out: Any, grad: Any, x: Any, *_: Any) -> tuple[Phase, ...]:
    """``-target * x`` step by step, its exponential, and the terms that follow."""
    return Phase(0, 3 * nbytes(x)), Phase(ALL_RESULTS, nbytes(x) + scalar(x))


@scratch("cpu", "aten::dist", source=f"{NATIVE}LinearAlgebra.cpp", band=0.0)
def _distance(out: Any, x: Any, other: Any, *_: Any) -> tuple[Phase, ...]:
    """The difference, for which operands of another dtype are cast."""
    difference = _paired(out, x, other)
    return Phase(0, difference + _cast_to(out.dtype, x, other)), Phase(ALL_RESULTS, difference)


@scratch("cpu", "aten::ldexp.Tensor", source=f"{NATIVE}BinaryOps.cpp: x * pow(2, other)", band=0.0)
def _scaled_by_powers(out: Any, x: Any, other: Any) -> int:
    return elements(other) * itemsize(out)


@reserve("cpu", "aten::binary_cross_entropy", "aten::soft_margin_loss", source=LOSS, band=0.0)
def _cross_entropy_storage(out: Any, x: Any, *_: Any) -> tuple[int, ...]:
    """The same as :func:`_squared_loss_storage`."""
    return (nbytes(x),)


@scratch("cpu", "aten::binary_cross_entropy_with_logits", source=LOSS, band=0.0)
def _cross_entropy_with_logits(
    out: Any, x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> int:
    """``log_sigmoid`` with its buffer, then ``1 - target``; in between ``pos_weight - 1`` and a weight per element.

    A target of another dtype sets the loss's.
    """
    if x.dtype is not target.dtype:
        written = nbytes(x) + _written_to(target.dtype, x, target)
        if not reduction:
            return written
        averaged = nbytes(x) + _mean_of(out, reduction, elements(x))
        return nbytes(target) + max(written - nbytes(out), averaged)
    loss = 2 * nbytes(x) + (_mean_of(out, reduction, elements(x)) if reduction else -nbytes(out))
    if pos_weight is None:
        return loss
    return max(loss, 2 * nbytes(x) + nbytes(pos_weight) + scalar(x) - nbytes(out))


@scratch("cpu", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor", source=f"{NATIVE}LossCTC.cpp", band=0.0)
def _ctc_backward(
    out: Any, grad: Any, scores: Any, targets: Any, inputs: Any, lengths: Any, loss: Any, table: Any, *_: Any
) -> int:
    """The forward's table again, filled from the end."""
    return nbytes(table)


@scratch("cpu", "aten::sort", "aten::sort.stable", source=f"{NATIVE}cpu/SortingKernel.cpp", band=0.0)
def _sort(out: Any, x: Any, *args: Any, **kwargs: Any) -> int:
    """The indices of one row."""
    dim = kwargs.get("dim", next((a for a in args if isinstance(a, int) and not isinstance(a, bool)), -1))
    return INT64 * int(x.shape[dim]) if x.dim() else 0


SELECTION = f"{NATIVE}Sorting.cpp"


@scratch("cpu", "aten::kthvalue", source=SELECTION, band=0.0)
def _kthvalue(out: Any, x: Any, *_: Any) -> int:
    return nbytes(x) + INT64 * elements(x)


@scratch("cpu", "aten::median", "aten::nanmedian", source=SELECTION, band=0.0)
def _median(out: Any, x: Any) -> int:
    return nbytes(x)


@scratch("cpu", "aten::median.dim", "aten::nanmedian.dim", source=SELECTION, band=0.0)
def _median_of(out: Any, x: Any, dim: int, *_: Any) -> int:
    """A copy if the axis is not contiguous, made block by block of one matrix."""
    if not x.dim() or x.stride(dim) == 1:
        return 0
    return nbytes(x) + (turned_block(x) if x.dim() == 2 and x.is_contiguous() else 0)


@scratch("cpu", "aten::roll", source=f"{NATIVE}TensorTransformations.cpp", band=0.0)
def _roll(out: Any, x: Any, shifts: Any, dims: Any = ()) -> int:
    """One axis after another, each into a new tensor; the calls are nested."""
    return max(0, len(dims) - 1) * nbytes(x)


@scratch("cpu", "aten::repeat", source=f"{NATIVE}TensorShape.cpp, repeat", band=0.0)
def _repeat(out: Any, x: Any, repeats: Any) -> int:
    """Shapes and strides as integer tensors, since torch 2.10."""
    return 4 * INT64 * len(repeats) if since("2.10") else 0


@scratch("cpu", "aten::tril", "aten::triu", source=f"{NATIVE}BatchLinearAlgebra.cpp, checkTrilTriuBatchContiguous",
         band=0.0)  # fmt: skip
def _triangle(out: Any, x: Any, *_: Any) -> int:
    """A copy, unless the matrices, in either order, follow one another without gaps."""
    following = int(prod(x.shape[-2:]))
    for size, stride in zip(reversed(x.shape[:-2]), reversed(x.stride()[:-2])):
        if stride != following:
            return copied(x)
        following *= size
    return 0


@scratch("cpu", "aten::native_dropout", source=f"{NATIVE}Dropout.cpp", band=0.0)
def _native_dropout(out: Any, x: Any, p: float, train: Any) -> int:
    return nbytes(x)


@scratch("cpu", "aten::multinomial", source=f"{NATIVE}Distributions.cpp", band=0.0)
def _multinomial(out: Any, p: Any, samples: int, replacement: bool = False, **_: Any) -> int | AtMost:
    """Cumulative weights of a row; without replacement an exponential per weight, their maxima, and the checks.

    Of the checks two answers are kept, and since torch 2.13 the extremes, but the rows' sums, compared with 0, are not.
    Torch 2.4 kept none, and counted the rows in int64. Torch 2.6 keeps them, and divides as 2.4 does; 2.5 and 2.7 were
    not measured.
    """
    if replacement:
        return int(p.shape[-1]) * itemsize(p)
    vals = elements(out) * itemsize(p) if samples > 1 else 0
    sums = elements(p) // int(p.shape[-1])
    checked = sums * (itemsize(p) + 1) + scalar(p)
    if since("2.13"):
        return 2 * itemsize(p) + 1 + max(nbytes(p) + vals + 1, checked)
    extremes = 2 * itemsize(p) + 1 + max(scalar(p) + 1, copied(p))  # Each is of a contiguous copy, and freed.
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
    """The least deviation, compared with 0."""
    return itemsize(deviation) + scalar(deviation) + 1
