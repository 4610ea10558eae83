"""Import torchvision's wheel from PyPI, which is built for CUDA, beside a torch that is not.

Its compiled library cannot be loaded there, so the operators that its import and its detection models need are missing.
Here they are defined as torchvision declares them; their CPU kernels are plain PyTorch, slow and right.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
    " int sampling_ratio, bool aligned) -> Tensor",
)

_library: torch.library.Library | None = None
"""Kept for as long as the process: its operators go when it does."""


def import_torchvision() -> ModuleType:
    """The torchvision package, with its own library where that loads, else with the kernels below."""
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
        _library.impl("roi_align", sys.modules["torchvision.ops.roi_align"]._roi_align.__wrapped__, "CPU")
        for name in ("torchvision.extension", "torchvision.ops.roi_align"):
            sys.modules[name]._has_ops = lambda: True  # type: ignore[attr-defined]
        return torchvision


def _forget(package: str) -> None:
    """Undo a half-done import."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Indices of the boxes to keep, best score first: those that no kept one overlaps by more than ``threshold``.

    ``boxes`` is (N, 4) as x1, y1, x2, y2; overlap is intersection over union.

    >>> nms(torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1.8], [5, 5, 6, 6]]), torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist()
    [1, 2]
    """
    left = scores.argsort(descending=True, stable=True)
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        left = left[_overlap(boxes[best], boxes[left]) <= threshold]
    return torch.stack(kept) if kept else left


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of one box with each of the others; 0 where both are empty."""
    size = (torch.minimum(box[2:], others[:, 2:]) - torch.maximum(box[:2], others[:, :2])).clamp(min=0)
    shared = size.prod(1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - shared
    return (shared / union).nan_to_num(0.0)
