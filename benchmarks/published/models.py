"""The models with figures published by torchvision and timm, by name, and their summaries on the published input."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchsummary_plus import ModelSummary, summary

DETECTION = ("rcnn", "retinanet", "ssd", "fcos")
FROZEN = (
    *("fasterrcnn_mobilenet_v3_large_fpn", "keypointrcnn_resnet50_fpn"),
    *("maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn"),
)
"""Published with frozen batch norms in the backbone, whose parameters are buffers."""

RESIZED = {"vit_h_14": {"image_size": 518}}
"""Arguments of constructors whose default input is not the published one."""


def build(library: str, name: str, size: str) -> nn.Module:
    """Return the model in eval mode, with random weights, on ``meta`` unless it needs values."""
    torch.manual_seed(0)
    if library == "torchvision":
        make = torchvision_maker(name, **RESIZED.get(name, {}))
    else:
        make = _timm_maker(name, int(size.rpartition("x")[2]))
    if any(part in name for part in DETECTION):
        model = make().eval()
        return frozen(model) if name in FROZEN else model
    try:
        with torch.device("meta"):
            return make().eval()
    except (RuntimeError, NotImplementedError):
        return make().eval()


def frozen(model: nn.Module) -> nn.Module:
    """Return the model with each batch norm of its backbone frozen."""
    from torchvision.ops import FrozenBatchNorm2d

    for module in list(model.get_submodule("backbone").modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, FrozenBatchNorm2d(child.num_features))
    return model


def run(model: nn.Module, size: str) -> ModelSummary:
    """Return the summary for an input such as ``1x3x224x224``, ``two 1x3x512x512``, or ``3x800x800`` (a list)."""
    *count, shape = size.split()
    axes = tuple(map(int, shape.split("x")))
    data: Any = torch.empty(axes)
    if len(axes) == 3:
        data = ([torch.rand(axes)],)
    elif count == ["two"]:
        data = (data, data)
    return summary(model, input_data=data, functional=True, verbose=0)


def torchvision_maker(name: str, **extra: Any) -> Callable[[], nn.Module]:
    """Return the constructor in ``torchvision.models`` that builds a model without fetching weights."""
    from torchvision import models

    if name.startswith("quantized_"):
        quantizable = getattr(models.quantization, name.removeprefix("quantized_"))
        return lambda: quantizable(weights=None, quantize=False)
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        extra["weights_backbone"] = None
    if name == "googlenet":
        extra |= {"aux_logits": False, "init_weights": False}  # the published weights have no auxiliary heads
    if "deeplab" in name or "fcn" in name:
        extra["aux_loss"] = True  # these do
    return lambda: models.get_model(name, weights=None, **extra)


def _timm_maker(name: str, size: int) -> Callable[[], nn.Module]:
    import timm

    def make() -> nn.Module:
        model: nn.Module
        try:
            model = timm.create_model(name, img_size=size)
        except TypeError:  # a model for any size
            model = timm.create_model(name)
        return model

    return make
