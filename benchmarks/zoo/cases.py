"""Third-party models with random weights, and their inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Case:
    """A model and its input: a ``size`` without the batch axis, or ``data`` as ``summary`` takes it."""

    library: str
    name: str
    make: Callable[[], nn.Module]
    size: Any = None
    data: Any = None


def listed(library: str, module: str, table: Mapping[str, tuple[dict[str, Any], Any]]) -> Iterator[Case]:
    """Yield the models of a table that the installed module has, each with its arguments, and its input or its size."""
    place = import_module(module)
    for name, (arguments, given) in table.items():
        if hasattr(place, name):
            yield case_of(library, name, partial(getattr(place, name), **arguments), given)


def case_of(library: str, name: str, make: Callable[[], nn.Module], given: Any) -> Case:
    """Return a case; a tuple of integers, or a list of such tuples, is a size, and everything else an input."""
    is_size = isinstance(given, list) or (isinstance(given, tuple) and all(isinstance(part, int) for part in given))
    return Case(library, name, make, size=given) if is_size else Case(library, name, make, data=given)


DETECTION = ("rcnn", "retinanet", "ssd", "fcos")
"""Parts of the names of torchvision's detectors."""


def torchvision_cases() -> Iterator[Case]:
    """Yield every model of ``torchvision.models``, except for detectors, which need its compiled operators."""
    from torchvision import models

    for name in models.list_models():
        if not any(part in name for part in DETECTION):
            yield Case("torchvision", name, torchvision_maker(name), size=_torchvision_size(name))


def torchvision_maker(name: str) -> Callable[[], nn.Module]:
    """Return the constructor in ``torchvision.models`` that builds a model without fetching weights."""
    from torchvision import models

    if name.startswith("quantized_"):
        quantizable = getattr(models.quantization, name.removeprefix("quantized_"))
        return lambda: quantizable(weights=None, quantize=False)
    extra: dict[str, Any] = {}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        extra["weights_backbone"] = None
    if name == "googlenet":
        extra |= {"aux_logits": False, "init_weights": False}  # as the published weights
    if "deeplab" in name or "fcn" in name:
        extra["aux_loss"] = True
    return lambda: models.get_model(name, weights=None, **extra)


def _torchvision_size(name: str) -> Any:
    if name.startswith("raft"):
        return [(3, 128, 128), (3, 128, 128)]
    if name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        return (3, 16, 112, 112)
    if name == "s3d" or name.startswith(("mvit", "swin3d")):
        return (3, 16, 224, 224)
    return (3, 299, 299) if "inception" in name else (3, 224, 224)


SMALL = ("test", "atto", "femto", "pico", "nano", "xxs", "xxtiny", "micro", "tiny", "zepto", "xs", "small", "s", "mini")
"""Words in the names of a family's small members, smallest first."""


def timm_cases() -> Iterator[Case]:
    """Yield one small member of each family of timm: names that share a file and their first word."""
    import timm

    def rank(name: str) -> tuple[int, int, str]:
        words = re.split("[_0-9]+", name)
        return min((SMALL.index(word) for word in words if word in SMALL), default=len(SMALL)), len(name), name

    families: dict[tuple[str, str], list[str]] = {}
    for module in timm.list_modules():
        for name in timm.list_models(module=module):
            word = re.match("(test_|tf_|legacy_)?[a-z]+", name)
            families.setdefault((module, word[0] if word else name), []).append(name)
    for members in families.values():
        name = min(members, key=rank)
        size = timm.models.get_pretrained_cfg(name).input_size
        yield Case("timm", name, partial(timm.create_model, name), size=size)
