"""CUDA: copies that pooling, padding, upsampling, softmax and scans make of tensors they cannot read in place.

So do transfers between the GPU and the CPU, and operators that convert their input first or are computed by others.

Source: the kernels' files in aten/src/ATen/native/cuda, each by its ``contiguous()`` calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...shapes.registry import is_dense
from ..allocations import INT64, Allocations, buffers, copied, copies, results, suggested
from ..registry import Alloc, Free, Result, Timeline, reserve, scratch
from .sorting import scan_of_row

SOURCE = "aten/src/ATen/native/cuda/"
TRANSFERS = "aten/src/ATen/native/cuda/Copy.cu, copy_requires_temporaries and copy_kernel_cuda"
FEWEST_CHANNELS = 4
"""Channels from which upsampling reads channels-last images."""


def _plain(*positions: int) -> Callable[..., Timeline]:
    """Return a formula: the results, then contiguous copies of the arguments at these positions."""

    def formula(out: Any, *args: Any, **_: Any) -> Timeline:
        return *results(out), *copies(*(args[place] for place in positions))

    return formula


def _in_inputs_format(*others: int) -> Callable[..., Timeline]:
    """Return a formula for gradients: input, gradient and the arguments at ``others`` in the input's format."""

    def formula(out: Any, grad: Any, x: Any, *args: Any) -> Timeline:
        read = (x, grad, *(args[place - 2] for place in others))
        return *results(out), *buffers(*(copied(tensor, suggested(x)) for tensor in read))

    return formula


def _all_plain(out: Any, x: Any, *_: Any) -> Timeline:
    """Results that are not contiguous are computed apart, from a contiguous input."""
    return *results(out), *copies(*(out if isinstance(out, (tuple, list)) else (out,)), x)


def _in_kernels_format(out: Any, read: Any, *_: Any) -> Timeline:
    """A copy of what is read in the layout of the kernel, which writes channels-last images of few channels apart."""
    if suggested(read) is not torch.channels_last:
        return Result(0), *copies(read)
    if read.shape[1] >= FEWEST_CHANNELS:
        return Result(0), *buffers(copied(read, torch.channels_last))
    return Result(0), Alloc(out.nbytes), *copies(read)


_RULES: tuple[tuple[Callable[..., Timeline], str, tuple[str, ...]], ...] = (
    # A copy of an input that is neither contiguous nor channels-last.
    (lambda out, x, *_: (*results(out), *buffers(copied(x, suggested(x)))), "AveragePool2d.cu, DilatedMaxPool*.cu",
     ("avg_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices")),
    (_in_inputs_format(), "AveragePool2d.cu", ("avg_pool2d_backward",)),
    (_in_inputs_format(7), "DilatedMaxPool2d.cu", ("max_pool2d_with_indices_backward",)),
    # Ahead of the result.
    (lambda out, x, *_: (*buffers(copied(x, suggested(x))), Result(0)), "AdaptiveAveragePooling.cu",
     ("_adaptive_avg_pool2d",)),
    # Channels-last kernels read a gradient of any strides.
    (lambda out, grad, x: (Result(0), *(copies(grad) if suggested(x) is torch.contiguous_format else ())),
     "AdaptiveAveragePooling.cu", ("_adaptive_avg_pool2d_backward",)),
    # A single volume is read in place.
    (lambda out, x, *_: (*copies(*([x] if x.dim() == 5 else [])), Result(0)), "AdaptiveAveragePooling3d.cu",
     ("_adaptive_avg_pool3d",)),
    (_all_plain, "AdaptiveMaxPooling2d.cu, AdaptiveMaxPooling3d.cu", ("adaptive_max_pool2d", "adaptive_max_pool3d")),
    (lambda out, grad, x, places: (Result(0), *copies(grad, places, out)), "AdaptiveMaxPooling2d.cu",
     ("adaptive_max_pool2d_backward",)),
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
    # Between equal sizes the gradient is copied as it is.
    (lambda out, grad, *_: (Result(0),) if out.shape == grad.shape else _in_kernels_format(out, grad),
     "UpSampleBilinear2d.cu", ("upsample_bilinear2d_backward",)),
    (_plain(0, 1), "SoftMax.cu", ("_log_softmax_backward_data",)),
    (_plain(0, 1, 2), "NLLLoss.cu", ("nll_loss_forward",)),
    (_plain(2, 1, 3, 0), "NLLLoss.cu", ("nll_loss_backward",)),
    # Weights that are not contiguous, and input and target for a mean or sum.
    (lambda out, x, target, weight, reduction, *_: (
        *results(out), *copies(*((x, weight, target) if reduction else (weight,)))),
     "NLLLoss2d.cu", ("nll_loss2d_forward",)),
    (lambda out, grad, x, target, weight, reduction, *_: (
        Result(0), *copies(*((target, weight) if reduction else (weight,)))),
     "NLLLoss2d.cu", ("nll_loss2d_backward",)),
    # A grid that is not contiguous, and expanded images and gradients, ahead of the results.
    (lambda out, x, grid, *grad: (
        *copies(*(t for t in (x, grid, *grad) if t is grid or 0 in t.stride())), *results(out)),
     "GridSampler.cpp", ("cudnn_grid_sampler", "cudnn_grid_sampler_backward")),
    # Ahead of the results.
    (lambda out, x, *_, **__: (*copies(x), *results(out)), "TensorModeKernel.cu, Sorting.cpp, FractionalMaxPool2d.cu",
     ("median.dim", "nanmedian.dim", "kthvalue", "fractional_max_pool2d_backward")),
    # Gradient and indices in the input's format.
    (lambda out, grad, x, *args: (Result(0), *buffers(*(copied(t, suggested(x)) for t in (grad, args[5])))),
     "DilatedMaxPool3d.cu", ("max_pool3d_with_indices_backward",)),
    # Where windows overlap, the positions along the axis.
    (lambda out, grad, sizes, dim, size, step: (
        Result(0), *buffers(INT64 * out.shape[dim] if out.dim() and step < size else 0)),
     "UnfoldBackwardKernel.cu", ("unfold_backward",)),
    (lambda out, *_: (Alloc(INT64),), "PowKernel.cu: the base as a tensor", ("pow.Scalar",)),
    # The input in the result's dtype, ahead of the result.
    (lambda out, x, *_, **__: (Alloc(out.nbytes), Result(0)) if x.dtype is not out.dtype else (Result(0),),
     "PowKernel.cu, TensorCompare.cu: by the iterator's common dtype", ("pow.Tensor_Scalar", "clamp")),
    # The magnitudes of floating-point numbers; of complex ones those of a part, then of the other, and its flags.
    (lambda out, x: (Alloc(x.nbytes // 2), Result(0), Free(0), Alloc(x.nbytes // 2), Alloc(x.numel()))
        if x.is_complex() else (*buffers(x.nbytes if x.dtype.is_floating_point else 0), Result(0)),
     "TensorCompare.cpp, isinf", ("isinf",)),
    # Few test elements are compared with each; any of a row is copied to the result. Others are sorted by operators.
    (lambda out, x, tests, **_: () if tests.numel() >= 10 * x.numel() ** 0.145 else (
        Result(0), Alloc(x.numel() * tests.numel()), Alloc(x.numel())),
     "TensorCompare.cpp, isin_default_kernel_gpu", ("isin.Tensor_Tensor",)),
    # Of complex numbers a complex result, whose real parts are copied to the real one.
    (lambda out, x: (Result(0), *buffers(x.nbytes if x.is_complex() and not out.is_complex() else 0)),
     "AbsKernel.cu, by UnaryOps.cpp", ("abs", "angle")),
    # Results that are not allocated in their order: the mask first, the workspace first, the sizes of bags first.
    (lambda out, *_, **__: (Result(1), Result(0)), "Dropout.cu, dropout_cuda", ("native_dropout",)),
    (lambda out, *_: (*results(out)[-1:], *results(out)[:-1]), "RNN.cu",
     ("_thnn_fused_gru_cell", "_thnn_fused_lstm_cell")),
    (lambda out, *_: (Result(2), Result(1), Result(0), Result(3)), "EmbeddingBag.cu",
     ("_embedding_bag", "_embedding_bag_forward_only")),
    # A mean also counts: the counts, ones for the source, and a mask of counts of 0.
    (lambda out, x, dim, index, src, reduce, **_: () if reduce != "mean" else (
        Alloc(out.nbytes), Alloc(src.nbytes), Alloc(out.numel())),
     "TensorAdvancedIndexing.cpp", ("scatter_reduce.two", "scatter_reduce_.two")),
    # The result starts with the input's bytes and is allocated anew if they are too few.
    (lambda out, x, *_: (Result(0), *copies(x)) if out.nbytes <= x.nbytes else (
        Alloc(x.nbytes), *copies(x), Result(0)), "Im2Col.cu, Col2Im.cu", ("im2col", "col2im")),
)  # fmt: skip
for _formula, _file, _names in _RULES:
    scratch("cuda", *(f"aten::{name}" for name in _names), source=f"{SOURCE}{_file}")(_formula)


# The result starts with the input's bytes; where they are enough, its storage keeps them.
reserve("cuda", "aten::im2col", "aten::col2im", source=f"{SOURCE}Im2Col.cu, Col2Im.cu")(
    lambda out, x, *_: (max(x.nbytes, out.nbytes),)
)


@scratch("cuda", "aten::cumsum", "aten::cumprod", source=f"{SOURCE}ScanKernels.cpp, ScanUtils.cuh")
def running(out: Any, x: Any, dim: int, *_: Any, **__: Any) -> Timeline:
    """The input in the result's dtype, a contiguous copy, and for one row of numbers CUB's storage.

    Source of the conversion: aten/src/ATen/native/ReduceOps.cpp, ``impl_func_cum_ops``.
    """
    converted = out.nbytes if x.dtype is not out.dtype else 0
    plain = out.nbytes if not x.is_contiguous() and (not converted or is_dense(x)) else 0
    return *results(out), *buffers(converted, plain, scan_of_row(out, x, dim))


def _between(target: Any, x: Any, non_blocking: bool = False) -> tuple[Alloc, ...]:
    """Return a transfer's temporary tensors on the GPU, which converts dtypes if the copy does not block."""
    sides = target.device.type, x.device.type
    if sorted(sides) != ["cpu", "cuda"] or not target.numel():
        return ()
    same_dtype, same_shape = target.dtype is x.dtype, x.shape == target.shape
    if same_dtype and same_shape and x.stride() == target.stride() and is_dense(x):
        return ()
    if sides == ("cpu", "cuda"):
        if non_blocking and not same_dtype:  # The source is converted first, and then made contiguous.
            is_permuted = is_dense(x) and not x.is_contiguous()
            return buffers(x.numel() * target.element_size(), target.nbytes if is_permuted else 0)
        return () if x.is_contiguous() and same_shape else (Alloc(target.numel() * x.element_size()),)
    if non_blocking and not same_dtype:
        return (Alloc(target.numel() * x.element_size()),)
    return copies(target)


scratch("cuda", "aten::copy_", source=TRANSFERS)(lambda out, *call, **how: _between(*call, **how))
scratch("cuda", "aten::_to_copy", source=TRANSFERS)(
    lambda out, x, *, non_blocking=False, **_: (Result(0), *made) if (made := _between(out, x, non_blocking)) else ()
)


@scratch("cuda", "aten::roll", source=f"{SOURCE}TensorTransformations.cu, roll_cuda")
def roll(out: Any, x: Any, shifts: Any, dims: Any = (), *_: Any) -> Timeline:
    """A contiguous copy of the input, and one rolled tensor for each axis but the last, each freed by the next."""
    steps = Allocations()
    previous = list(steps.append(copies(x)))
    for _axis in dims[:-1]:
        rolled = steps.buffer(x.nbytes)
        steps.free(*previous)
        previous = [rolled]
    steps.result(0)
    return steps.timeline()
