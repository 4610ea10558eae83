"""Copies that CPU kernels make of tensors they cannot read or write in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..registry import ALL_RESULTS, Formula, Phase, scratch
from ..sizes import NATIVE, copied, suggested
from .transposing import copied_in_turn


def _argument(args: tuple[Any, ...], index: int) -> Any:
    value = args[index] if index < len(args) else None
    return value if isinstance(value, torch.Tensor) else None


def _copies(*positions: int) -> Formula:
    """Return a formula: contiguous copies of the arguments at these positions."""

    def formula(out: Any, *args: Any, **kwargs: Any) -> int:
        return copied_in_turn(*(_argument(args, index) for index in positions))[1]

    return formula


def _selected(out: Any, x: Any, dim: int, index: Any) -> int:
    """Contiguous copies of the index and, along the second axis, of the source."""
    return copied_in_turn(index, x if x.dim() > 1 and dim % x.dim() == 1 else None)[1]


def _looked_up(out: Any, table: Any, index: Any, *_: Any) -> tuple[Phase, ...]:
    """A contiguous copy of the index, made before the result."""
    copies, most = copied_in_turn(index)
    return Phase(0, most), Phase(ALL_RESULTS, copies)


def _pixel_likelihood(out: Any, x: Any, target: Any, weight: Any, reduction: int, *_: Any) -> int:
    """Contiguous copies of the weights and, for a mean or sum, of input and target."""
    return copied(weight) + (copied(x) + copied(target) if reduction else 0)


def _image_copy(out: Any, image: Any, *args: Any, **kwargs: Any) -> int:
    """A copy of an image that is neither contiguous nor channels-last."""
    return copied(image, suggested(image))


def _unpooled(out: Any, x: Any, places: Any, *_: Any) -> int:
    """Copies of an image and its places in the image's format."""
    layout = suggested(x)
    return copied(x, layout) + copied(places, layout)


def _in_rows(out: Any, x: Any, *args: Any, **kwargs: Any) -> int:
    """The first operand and the result in row-major order."""
    return copied(x) + copied(out)


def _in_gradients_format(*positions: int) -> Formula:
    """Return a formula for image backwards: all in the incoming gradient's format, written back at the end."""

    def formula(out: Any, grad: Any, *args: Any, **kwargs: Any) -> int:
        layout = suggested(grad)
        return sum(copied(_argument((grad, *args), index), layout) for index in positions) + copied(out, layout)

    return formula


def _in_results_format(out: Any, grad: Any, x: Any, indices: Any) -> int:
    """Gradient and positions in the result's format."""
    layout = suggested(out)
    return copied(grad, layout) + copied(indices, layout) + copied(out, layout)


def _resampled(out: Any, grad: Any, *args: Any, **kwargs: Any) -> int:
    """In channels-last if the gradient is contiguous so, else row-major."""
    layout = suggested(grad)
    if not grad.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    return copied(grad, layout) + copied(out, layout)


def _volume(formula: Callable[..., int], rows: Callable[..., int]) -> Callable[..., int]:
    """Return a formula for volumes, whose channels come last in batches only."""

    def chosen(out: Any, x: Any, *args: Any, **kwargs: Any) -> int:
        return (formula if x.dim() == 5 else rows)(out, x, *args, **kwargs)

    return chosen


_RULES: tuple[tuple[Callable[..., Any], str, tuple[str, ...]], ...] = (
    (_copies(0), "SoftMax.cpp", ("_softmax", "_log_softmax")),
    (_copies(0, 1), "SoftMax.cpp", ("_softmax_backward_data", "_log_softmax_backward_data")),
    (_copies(0, 2, 3), "layer_norm.cpp", ("native_layer_norm",)),
    (_copies(0, 1, 4), "LossMultiMargin.cpp", ("multi_margin_loss",)),
    (_copies(1, 2, 5), "LossMultiMargin.cpp", ("multi_margin_loss_backward",)),
    (_looked_up, "Embedding.cpp", ("embedding",)),
    (_copies(1, 0), "Embedding.cpp", ("embedding_dense_backward",)),
    (_pixel_likelihood, "NLLLoss2d.cpp", ("nll_loss2d_forward",)),
    (_copies(1, 2), "NLLLoss2d.cpp", ("nll_loss2d_backward",)),
    (_unpooled, "MaxUnpooling.cpp", ("max_unpool2d",)),
    (_copies(0, 1), "MaxUnpooling.cpp", ("max_unpool3d",)),
    (_copies(0), "TensorShape.cpp", ("narrow_copy",)),
    (_selected, "TensorAdvancedIndexing.cpp", ("index_select",)),
    (_copies(0), "GridSampler.cpp", ("grid_sampler_2d_backward",)),
    (
        _image_copy,
        "AveragePool2d.cpp, MaxPooling.cpp, AdaptiveAveragePooling.cpp, ReflectionPad.cpp, PixelShuffle.cpp",
        (
            *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d"),
            *("_adaptive_avg_pool2d", "adaptive_max_pool2d"),
            *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"),
            *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
        ),
    ),
    (
        _in_gradients_format(0, 7),
        "cpu/MaxPoolKernel.cpp",
        ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
    ),
    (_in_results_format, "cpu/AdaptiveMaxPoolKernel.cpp", ("adaptive_max_pool2d_backward",)),
    (
        _copies(0),
        "AveragePool3d.cpp, AdaptiveAveragePooling3d.cpp, AdaptiveMaxPooling3d.cpp",
        (
            *("avg_pool3d", "avg_pool3d_backward"),
            *("_adaptive_avg_pool3d_backward", "adaptive_max_pool3d_backward"),
        ),
    ),
    (
        _in_gradients_format(0),
        "cpu/AvgPoolKernel.cpp, cpu/AdaptiveAvgPoolKernel.cpp, cpu/PaddingKernel.cpp",
        (
            *("avg_pool2d_backward", "_adaptive_avg_pool2d_backward"),
            *("reflection_pad1d_backward", "reflection_pad2d_backward"),
            *("replication_pad1d_backward", "replication_pad2d_backward"),
        ),
    ),
    (_volume(_image_copy, _in_rows), "cpu/PaddingKernel.cpp", ("reflection_pad3d", "replication_pad3d")),
    (
        _volume(_in_gradients_format(0), _in_rows),
        "cpu/PaddingKernel.cpp",
        ("reflection_pad3d_backward", "replication_pad3d_backward"),
    ),
    (
        _resampled,
        "cpu/UpSampleMoreKernel.cpp",
        (
            *("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward"),
            *("_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward"),
            *("_upsample_nearest_exact3d_backward", "upsample_linear1d_backward"),
            *("upsample_bilinear2d_backward", "upsample_trilinear3d_backward"),
        ),
    ),
    (_copies(0), "UpSampleBicubic2d.cpp", ("upsample_bicubic2d_backward",)),
    (
        _in_rows,
        "cpu/UpSampleKernel.cpp",
        ("_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward"),
    ),
)
"""Formula, source file in aten/src/ATen/native, operators."""

for _formula, _file, _operators in _RULES:
    scratch("cpu", *(f"aten::{name}" for name in _operators), source=f"{NATIVE}{_file}", band=0.0)(_formula)
