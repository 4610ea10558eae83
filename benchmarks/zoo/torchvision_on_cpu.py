"""Import torchvision's PyPI wheel, which is built for CUDA, with a CPU build of torch.

Its compiled library cannot be loaded there, so the operators that its import needs are declared here, without kernels:
its models run, except for detectors.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import torch

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
    """Import torchvision, with its own library if that loads."""
    global _library
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        _library.define(schema)
    return import_module("torchvision")
