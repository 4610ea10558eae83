"""CUDA: copies that pooling, upsampling, softmax, losses and scans make of tensors they cannot read in place.

So do transfers between the GPU and the CPU, and operators that convert their input first or are computed by others.

Source: the kernels' files in aten/src/ATen/native/cuda, each by its ``contiguous()`` calls; for transfers Copy.cu
(``copy_requires_temporaries``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...shapes.registry import is_dense
from ..allocations import INT64, Allocations, buffers, copied, copies, results, suggested
from ..registry import Alloc, Free, Result, Timeline, scratch
from .sorting import scan_of_row

FEWEST_CHANNELS = 4
"""Channels from which upsampling reads channels-last images."""


def _plain(*positions: int) -> Callable[..., Timeline]:
    """Return a formula: contiguous copies of the arguments at these positions."""
    return lambda out, *args, **_: copies(*(args[place] for place in positions))


def _in_inputs_format(*others: int) -> Callable[..., Timeline]:
    """Return a formula for gradients: input, gradient and the arguments at ``others`` in the input's format."""
    return lambda out, *args, **_: buffers(*(copied(args[place], suggested(args[1])) for place in (1, 0, *others)))


def _in_kernels_format(out: Any, read: Any, *_: Any) -> Timeline:
    """A copy of what is read in the layout of the kernel, which writes channels-last images of few channels apart."""
    if suggested(read) is not torch.channels_last:
        return copies(read)
    if read.shape[1] >= FEWEST_CHANNELS:
        return buffers(copied(read, torch.channels_last))
    return Alloc(out.nbytes), *copies(read)


_RULES: tuple[tuple[Callable[..., Timeline], tuple[str, ...]], ...] = (
    # A copy of an input that is neither contiguous nor channels-last.
    (lambda out, x, *_: buffers(copied(x, suggested(x))), ("avg_pool2d", "max_pool2d_with_indices")),
    (_in_inputs_format(), ("avg_pool2d_backward",)),
    (_in_inputs_format(7), ("max_pool2d_with_indices_backward",)),
    # Ahead of the result.
    (lambda out, x, *_: (*buffers(copied(x, suggested(x))), Result(0)), ("_adaptive_avg_pool2d",)),
    # Channels-last kernels read a gradient of any strides.
    (lambda out, grad, x: copies(grad) if suggested(x) is torch.contiguous_format else (),
     ("_adaptive_avg_pool2d_backward",)),
    (_in_kernels_format, (
        *("upsample_nearest2d", "_upsample_nearest_exact2d"),
        *("upsample_nearest2d_backward", "_upsample_nearest_exact2d_backward"),
    )),
    # Between equal sizes the gradient is copied as it is.
    (lambda out, grad, *_: () if out.shape == grad.shape else _in_kernels_format(out, grad),
     ("upsample_bilinear2d_backward",)),
    (_plain(0), ("_softmax", "_log_softmax")),
    (_plain(0, 1), ("_log_softmax_backward_data",)),
    (_plain(0, 1, 2), ("nll_loss_forward",)),
    (_plain(2, 1, 3, 0), ("nll_loss_backward",)),
    # Weights that are not contiguous, and input and target for a mean or sum.
    (lambda out, x, target, weight, reduction, *_: copies(*((x, weight, target) if reduction else (weight,))),
     ("nll_loss2d_forward",)),
    (lambda out, grad, x, target, weight, reduction, *_: copies(*((target, weight) if reduction else (weight,))),
     ("nll_loss2d_backward",)),
    # A grid that is not contiguous, and expanded images and gradients, ahead of the results.
    (lambda out, x, grid, *grad: (
        *copies(*(t for t in (x, grid, *grad) if t is grid or 0 in t.stride())), *results(out)),
     ("cudnn_grid_sampler", "cudnn_grid_sampler_backward")),
    # The base as a tensor.
    (lambda out, *_: (Alloc(INT64),), ("pow.Scalar",)),
    # The input in the result's dtype, ahead of the result, as the iterator has one dtype for all.
    (lambda out, x, *_, **__: (Alloc(out.nbytes), Result(0)) if x.dtype is not out.dtype else (),
     ("pow.Tensor_Scalar", "clamp")),
    # The magnitudes of floating-point numbers; of complex ones those of a part, then of the other, and its flags.
    (lambda out, x: (Alloc(x.nbytes // 2), Result(0), Free(0), Alloc(x.nbytes // 2), Alloc(x.numel()))
        if x.is_complex() else (*buffers(x.nbytes if x.dtype.is_floating_point else 0), Result(0)), ("isinf",)),
    # Few test elements are compared with each; any of a row is copied to the result. Others are sorted by operators.
    (lambda out, x, tests, **_: () if tests.numel() >= 10 * x.numel() ** 0.145 else (
        Alloc(x.numel() * tests.numel()), Alloc(x.numel())), ("isin.Tensor_Tensor",)),
    # Of complex numbers a complex result, whose real parts are copied to the real one.
    (lambda out, x: buffers(x.nbytes if x.is_complex() and not out.is_complex() else 0), ("abs", "angle")),
    # Results that are not allocated in their order: the mask first, the workspace first.
    (lambda out, *_, **__: (Result(1), Result(0)), ("native_dropout",)),
    (lambda out, *_: (*results(out)[-1:], *results(out)[:-1]), ("_thnn_fused_gru_cell", "_thnn_fused_lstm_cell")),
    # A mean also counts: the counts, ones for the source, and a mask of counts of 0.
    (lambda out, x, dim, index, src, reduce, **_: () if reduce != "mean" else (
        Alloc(out.nbytes), Alloc(src.nbytes), Alloc(out.numel())), ("scatter_reduce.two", "scatter_reduce_.two")),
    # The result starts with the input's bytes, which its storage keeps, and is allocated anew if they are too few.
    (lambda out, x, *_: (Result(0, x.nbytes), *copies(x)) if out.nbytes <= x.nbytes else (
        Alloc(x.nbytes), *copies(x), Result(0)), ("im2col", "col2im")),
)  # fmt: skip
for _formula, _names in _RULES:
    scratch("cuda", *(f"aten::{name}" for name in _names))(_formula)


@scratch("cuda", "aten::cumsum", "aten::cumprod")
def running(out: Any, x: Any, dim: int, *_: Any, **__: Any) -> Timeline:
    """The input in the result's dtype, a contiguous copy, and for one row of numbers CUB's storage.

    Source of the conversion: aten/src/ATen/native/ReduceOps.cpp, ``impl_func_cum_ops``.
    """
    converted = out.nbytes if x.dtype is not out.dtype else 0
    plain = out.nbytes if not x.is_contiguous() and (not converted or is_dense(x)) else 0
    return buffers(converted, plain, scan_of_row(out, x, dim))


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


scratch("cuda", "aten::copy_")(lambda out, *call, **how: _between(*call, **how))
scratch("cuda", "aten::_to_copy")(
    lambda out, x, *, non_blocking=False, **_: (Result(0), *made) if (made := _between(out, x, non_blocking)) else ()
)


@scratch("cuda", "aten::roll")
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
