"""CUDA: copies that pooling, padding, upsampling, softmax and scans make of tensors they cannot read in place.

So do transfers between the GPU and the CPU, and operators that convert their input first or are computed by others.

Source: the kernels' files in aten/src/ATen/native/cuda, each by its ``contiguous()`` calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...shapes.registry import is_dense
from ..registry import Alloc, Course, Free, Result, reserve, scratch
from ..sizes import INT64, copied, elements, itemsize, nbytes, suggested
from .allocations import Allocations, buffers, copies, results
from .chips import Chip
from .reductions import course, extreme, mask_like
from .sorting import scan_of_row

SOURCE = "aten/src/ATen/native/cuda/"
FEWEST_CHANNELS = 4
"""Channels from which upsampling reads channels-last images."""


def _plain(*positions: int) -> Callable[..., Course]:
    """Return a formula: the results, then contiguous copies of the arguments at these positions."""

    def formula(out: Any, *args: Any, **_: Any) -> Course:
        return *results(out), *copies(*(args[place] for place in positions))

    return formula


def _plain_first(out: Any, x: Any, *_: Any, **__: Any) -> Course:
    """A contiguous copy of the input, ahead of the results."""
    return *copies(x), *results(out)


def _volume_plain_first(out: Any, x: Any, *_: Any) -> Course:
    """The same for a batch; a single volume is read in place."""
    return _plain_first(out, x) if x.dim() == 5 else results(out)


def _in_own_format(out: Any, x: Any, *_: Any) -> Course:
    """A copy of an input that is neither contiguous nor channels-last."""
    return *results(out), *buffers(copied(x, suggested(x)))


def _in_own_format_first(out: Any, x: Any, *_: Any) -> Course:
    """The same, ahead of the results."""
    return *buffers(copied(x, suggested(x))), *results(out)


def _in_inputs_format(*others: int) -> Callable[..., Course]:
    """Return a formula for gradients: input, gradient and the arguments at ``others`` in the input's format."""

    def formula(out: Any, grad: Any, x: Any, *args: Any) -> Course:
        read = (x, grad, *(args[place - 2] for place in others))
        return *results(out), *buffers(*(copied(tensor, suggested(x)) for tensor in read))

    return formula


def _all_plain(out: Any, x: Any, *_: Any) -> Course:
    """Results that are not contiguous are computed apart, from a contiguous input."""
    return *results(out), *copies(*(out if isinstance(out, (tuple, list)) else (out,)), x)


def _average_backward(out: Any, grad: Any, x: Any) -> Course:
    """A contiguous gradient for a contiguous input; channels-last kernels read any strides."""
    return *results(out), *buffers(copied(grad) if suggested(x) is torch.contiguous_format else 0)


def _in_kernels_format(out: Any, read: Any, *_: Any) -> Course:
    """A copy of what is read in the layout of the kernel, which writes channels-last images of few channels apart."""
    if suggested(read) is not torch.channels_last:
        return Result(0), *copies(read)
    if read.shape[1] >= FEWEST_CHANNELS:
        return Result(0), *buffers(copied(read, torch.channels_last))
    return Result(0), Alloc(nbytes(out)), *copies(read)


def _bilinear_backward(out: Any, grad: Any, *_: Any) -> Course:
    """The same, unless the sizes are equal: then the gradient is copied."""
    return (Result(0),) if out.shape == grad.shape else _in_kernels_format(out, grad)


def _greatest_backward(out: Any, grad: Any, x: Any, places: Any) -> Course:
    return *results(out), *copies(grad, places, out)


_RULES: tuple[tuple[Callable[..., Course], str, tuple[str, ...]], ...] = (
    (_in_own_format, "AveragePool2d.cu, DilatedMaxPool2d.cu, DilatedMaxPool3d.cu",
     ("avg_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices")),
    (_in_inputs_format(), "AveragePool2d.cu", ("avg_pool2d_backward",)),
    (_in_inputs_format(7), "DilatedMaxPool2d.cu", ("max_pool2d_with_indices_backward",)),
    (_in_own_format_first, "AdaptiveAveragePooling.cu", ("_adaptive_avg_pool2d",)),
    (_average_backward, "AdaptiveAveragePooling.cu", ("_adaptive_avg_pool2d_backward",)),
    (_volume_plain_first, "AdaptiveAveragePooling3d.cu", ("_adaptive_avg_pool3d",)),
    (_all_plain, "AdaptiveMaxPooling2d.cu, AdaptiveMaxPooling3d.cu", ("adaptive_max_pool2d", "adaptive_max_pool3d")),
    (_greatest_backward, "AdaptiveMaxPooling2d.cu", ("adaptive_max_pool2d_backward",)),
    (_all_plain, "UpSampleBilinear2d.cu, UpSampleNearest3d.cu",
     ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "upsample_nearest3d", "_upsample_nearest_exact3d")),
    (_plain(0), "AveragePool3d.cu, ReflectionPad.cu, UpSample*.cu, SoftMax.cu", (
        *("avg_pool3d", "avg_pool3d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool3d_backward"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
        *("reflection_pad1d_backward", "reflection_pad2d_backward"),
        *("upsample_nearest1d", "_upsample_nearest_exact1d", "_upsample_nearest_exact1d_backward"),
        *("upsample_linear1d_backward", "_upsample_nearest_exact3d_backward", "upsample_nearest1d_backward"),
        *("upsample_nearest3d_backward", "upsample_trilinear3d_backward", "upsample_bicubic2d_backward"),
        *("_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward"),
        *("_softmax", "_log_softmax"),
    )),
    (_in_kernels_format, "UpSampleNearest2d.cu", (
        *("upsample_nearest2d", "_upsample_nearest_exact2d"),
        *("upsample_nearest2d_backward", "_upsample_nearest_exact2d_backward"),
    )),
    (_bilinear_backward, "UpSampleBilinear2d.cu", ("upsample_bilinear2d_backward",)),
    (_plain(0, 1), "SoftMax.cu", ("_log_softmax_backward_data",)),
    (_plain(0, 1, 2), "NLLLoss.cu", ("nll_loss_forward",)),
    (_plain(2, 1, 3, 0), "NLLLoss.cu", ("nll_loss_backward",)),
    (_plain_first, "TensorModeKernel.cu, Sorting.cpp", ("median.dim", "nanmedian.dim", "kthvalue")),
    (_plain_first, "FractionalMaxPool2d.cu", ("fractional_max_pool2d_backward",)),
)  # fmt: skip
for _formula, _file, _names in _RULES:
    scratch("cuda", *(f"aten::{name}" for name in _names), source=f"{SOURCE}{_file}")(_formula)


@scratch("cuda", "aten::max_pool3d_with_indices_backward", source=f"{SOURCE}DilatedMaxPool3d.cu")
def volume_backward(out: Any, grad: Any, x: Any, *args: Any) -> Course:
    """Gradient and indices in the input's format."""
    return *results(out), *buffers(copied(grad, suggested(x)), copied(args[5], suggested(x)))


@scratch("cuda", "aten::unfold_backward", source="aten/src/ATen/native/UnfoldBackward.h")
def unfold_backward(out: Any, grad: Any, sizes: Any, dim: int, size: int, step: int) -> Course:
    """Where windows overlap, the positions along the axis."""
    return Result(0), *buffers(INT64 * out.shape[dim] if out.dim() and step < size else 0)


@scratch("cuda", "aten::im2col", "aten::col2im", source=f"{SOURCE}Im2Col.cu, Col2Im.cu")
def columns(out: Any, x: Any, *_: Any) -> Course:
    """The result starts with the input's bytes and is allocated anew if they are too few."""
    if nbytes(out) <= nbytes(x):
        return Result(0), *copies(x)
    return Alloc(nbytes(x)), *copies(x), Result(0)


@reserve("cuda", "aten::im2col", "aten::col2im", source=f"{SOURCE}Im2Col.cu, Col2Im.cu")
def columns_storage(out: Any, x: Any, *_: Any) -> tuple[int, ...]:
    """The result starts with the input's bytes; where they are enough, its storage keeps them."""
    return (max(nbytes(x), nbytes(out)),)


@scratch(
    *("cuda", "aten::cudnn_grid_sampler", "aten::cudnn_grid_sampler_backward"),
    source="aten/src/ATen/native/cudnn/GridSampler.cpp",
)
def sampled(out: Any, x: Any, grid: Any, grad: Any = None) -> Course:
    """Contiguous copies of a grid that is not, and of expanded images and gradients, ahead of the results."""
    read = [tensor for tensor in (x, grid, grad) if tensor is not None]
    return *copies(*(tensor for tensor in read if tensor is grid or 0 in tensor.stride())), *results(out)


@scratch("cuda", "aten::cumsum", "aten::cumprod", source=f"{SOURCE}ScanKernels.cpp, ScanUtils.cuh")
def running(out: Any, x: Any, dim: int, *_: Any, **__: Any) -> Course:
    """The input in the result's dtype, a contiguous copy, and for one row of numbers CUB's storage.

    Source of the conversion: aten/src/ATen/native/ReduceOps.cpp, ``impl_func_cum_ops``.
    """
    return *results(out), *_running(out, x, dim)


def _running(out: Any, x: Any, dim: int) -> tuple[Alloc, ...]:
    converted = nbytes(out) if x.dtype is not out.dtype else 0
    plain = nbytes(out) if not x.is_contiguous() and (not converted or is_dense(x)) else 0
    return buffers(converted, plain, scan_of_row(out, x, dim))


REPEATED = "aten/src/ATen/native/Repeat.h, repeat_interleave_common; cuda/Repeat.cu"


@scratch("cuda", "aten::repeat_interleave.Tensor", source=REPEATED)
def repeated(chip: Chip, out: Any, repeats: Any, *, output_size: int | None = None) -> Course:
    """Where each element's repetitions end; unless their sum is given, whether each number is at least zero."""
    if not repeats.numel():
        return ()
    steps = Allocations()
    steps.append(copies(repeats))
    ends = torch.empty(repeats.shape, dtype=torch.int64, device="meta")
    steps.buffer(nbytes(ends))
    steps.free(*steps.append(_running(ends, repeats, 0)))
    if output_size is None:
        mask, checked = mask_like(repeats), [steps.buffer(repeats.numel()), steps.buffer(1)]
        steps.append(course(chip, mask, [], torch.bool, extreme(torch.bool)))
        steps.free(*checked)
    steps.result(0)
    return steps.course()


TRANSFERS = "aten/src/ATen/native/cuda/Copy.cu, copy_requires_temporaries and copy_kernel_cuda"


@scratch("cuda", "aten::_to_copy", source=TRANSFERS)
def transferred(out: Any, x: Any, *, non_blocking: bool = False, **_: Any) -> Course:
    """As :func:`copied_to`, with a new target."""
    temporary = _between(out, x, non_blocking)
    return (Result(0), *temporary) if temporary else ()


@scratch("cuda", "aten::copy_", source=TRANSFERS)
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


CONVERTING = "aten/src/ATen/native/Pow.cpp and TensorCompare.cpp, by the iterator's common dtype"


@scratch("cuda", "aten::pow.Tensor_Scalar", "aten::clamp", source=CONVERTING)
def converted(out: Any, x: Any, *_: Any, **__: Any) -> Course:
    """The input in the result's dtype, ahead of the result."""
    return (Alloc(nbytes(out)), Result(0)) if x.dtype is not out.dtype else (Result(0),)


@scratch("cuda", "aten::pow.Scalar", source="aten/src/ATen/native/Pow.cpp: the base as a tensor")
def power(out: Any, *_: Any) -> Course:
    """The base as a tensor."""
    return (Alloc(INT64),)


MAGNITUDES = "aten/src/ATen/native/UnaryOps.cpp, unary_op_impl_with_complex_to_float_out"


@scratch("cuda", "aten::abs", "aten::angle", source=MAGNITUDES)
def magnitude(out: Any, x: Any) -> Course:
    """Of complex numbers a complex result, whose real parts are copied to the real one."""
    return Result(0), *buffers(nbytes(x) if x.is_complex() and not out.is_complex() else 0)


@scratch("cuda", "aten::isinf", source="aten/src/ATen/native/TensorCompare.cpp, isinf")
def isinf(out: Any, x: Any) -> Course:
    """The magnitudes of floating-point numbers; of complex ones those of a part, then of the other, and its flags."""
    if x.is_complex():
        part = Alloc(nbytes(x) // 2)
        return part, Result(0), Free(0), part, Alloc(elements(x))
    return (Alloc(nbytes(x)), Result(0)) if x.dtype.is_floating_point else (Result(0),)


@scratch("cuda", "aten::isin.Tensor_Tensor", source="aten/src/ATen/native/TensorCompare.cpp, isin_default_kernel_gpu")
def is_in(out: Any, x: Any, tests: Any, **_: Any) -> Course:
    """For few test elements each pair is compared, and any of a row is copied to the result."""
    if elements(tests) >= 10 * elements(x) ** 0.145:  # Others are sorted together, by operators of their own.
        return ()
    return Result(0), Alloc(elements(x) * elements(tests)), Alloc(elements(x))


ROLL = "aten/src/ATen/native/TensorTransformations.h, roll_common; cuda/TensorTransformations.cu, roll_cuda"


@scratch("cuda", "aten::roll", source=ROLL)
def roll(out: Any, x: Any, shifts: Any, dims: Any = (), *_: Any) -> Course:
    """A contiguous copy of the input, and one rolled tensor for each axis but the last, each freed by the next."""
    steps = Allocations()
    previous = list(steps.append(copies(x)))
    for _axis in dims[:-1]:
        rolled = steps.buffer(nbytes(x))
        steps.free(*previous)
        previous = [rolled]
    steps.result(0)
    return steps.course()
