"""Import torchvision's PyPI wheel, which is built for CUDA, with a CPU build of torch.

Its compiled library cannot be loaded there, so the operators that its import and its detection models need are missing.
They are defined here as torchvision declares them; their CPU kernels are plain PyTorch, slow but correct.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
    " int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
    " SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
)

_library: torch.library.Library | None = None
"""Kept as long as the process, because its operators exist only as long as it does."""


def import_torchvision() -> ModuleType:
    """Import torchvision, with its own library if that loads, otherwise with the kernels below."""
    global _library
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _forget("torchvision")
        _library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            _library.define(schema)
        _library.impl("nms", nms, "CPU")
        torchvision = import_module("torchvision")
        for name, device, kernel in (
            ("roi_align", "CPU", roi_align),
            ("roi_align", "Meta", roi_align_shape),
            ("_roi_align_backward", "CPU", roi_align_backward),
            ("_roi_align_backward", "Meta", roi_align_backward_shape),
        ):
            _library.impl(name, kernel, device)
        torch.library.register_autograd(
            "torchvision::roi_align", _backward, setup_context=_keep_for_backward, lib=_library
        )
        for name in ("torchvision.extension", "torchvision.ops.roi_align"):
            sys.modules[name]._has_ops = lambda: True  # type: ignore[attr-defined]
        return torchvision


def _forget(package: str) -> None:
    """Undo an incomplete import."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the indices of the boxes to keep, best first: those that no kept box overlaps by more than ``threshold``.

    ``boxes`` is (N, 4) as x1, y1, x2, y2; overlap is intersection over union.

    >>> nms(torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1.8], [5, 5, 6, 6]]), torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist()
    [1, 2]
    """
    left = scores.argsort(descending=True, stable=True)
    chosen = []
    while len(left):
        best, left = left[0], left[1:]
        chosen.append(best)
        left = left[_overlap(boxes[best], boxes[left]) <= threshold]
    return torch.stack(chosen) if chosen else left


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of one box with each of the others; 0 if both are empty."""
    size = (torch.minimum(box[2:], others[:, 2:]) - torch.maximum(box[:2], others[:, :2])).clamp(min=0)
    shared = size.prod(1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - shared
    return (shared / union).nan_to_num(0.0)


def roi_align(x: Tensor, rois: Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool) -> Tensor:
    """Pool regions of feature maps to one size with torchvision's plain PyTorch, region by region to save memory.

    ``x`` is (N, C, H, W), ``rois`` (K, 5) as image, x1, y1, x2, y2; the result is (K, C, height, width).
    """
    plain = sys.modules["torchvision.ops.roi_align"]._roi_align.__wrapped__
    out = x.new_empty(len(rois), x.size(1), height, width)
    for place, roi in zip(out, rois):
        place.copy_(plain(x, roi[None], scale, height, width, ratio, aligned)[0])
    return out


def roi_align_shape(x: Tensor, rois: Tensor, scale: float, height: int, width: int, *_: object) -> Tensor:
    return x.new_empty(rois.size(0), x.size(1), height, width)


def roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    *options: Any,
) -> Tensor:
    """Return the gradient of ``roi_align`` for its input, by autograd of the plain PyTorch, region by region."""
    plain = sys.modules["torchvision.ops.roi_align"]._roi_align.__wrapped__
    total = grad.new_zeros(batch_size, channels, height, width)
    for box_grad, roi in zip(grad, rois):
        image = roi[:1].long()
        alone = torch.cat([torch.zeros_like(roi[:1]), roi[1:]])[None]
        with torch.enable_grad():
            x = torch.zeros_like(total[:1]).requires_grad_()
            out = plain(x, alone, scale, pooled_height, pooled_width, *options)
        total.index_add_(0, image, torch.autograd.grad(out, x, box_grad[None])[0])
    return total


def roi_align_backward_shape(
    grad: Tensor, rois: Tensor, scale: float, pooled_h: int, pooled_w: int, *sizes: int
) -> Tensor:
    return grad.new_empty(sizes[:4])


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, rois, *ctx.options = inputs
    ctx.shape = x.shape
    ctx.save_for_backward(rois)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    scale, height, width, *rest = ctx.options
    (rois,) = ctx.saved_tensors
    gradient = torch.ops.torchvision._roi_align_backward(grad, rois, scale, height, width, *ctx.shape, *rest)
    return (gradient, *[None] * 6)
