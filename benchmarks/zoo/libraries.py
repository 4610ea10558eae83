"""The libraries that the zoo takes models from. A library that is not installed is skipped with a message."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec

from benchmarks.zoo.cases import Case
from benchmarks.zoo.torchaudio_on_cpu import import_torchaudio
from benchmarks.zoo.torchvision_on_cpu import import_torchvision

LIBRARIES = {
    "torchvision": "zoo:torchvision_cases",
    "timm": "zoo:timm_cases",
    "transformers": "zoo_transformers:transformers_cases",
    "monai": "zoo_volumes:monai_cases",
    "diffusers": "zoo_diffusion:diffusers_cases",
    "segmentation_models_pytorch": "zoo_images:segmentation_cases",
    "pytorchcv": "zoo_images:pytorchcv_cases",
    "efficientnet_pytorch": "zoo_images:efficientnet_cases",
    "ultralytics": "zoo_images:ultralytics_cases",
    "vit_pytorch": "zoo_vit:vit_pytorch_cases",
    "open_clip": "zoo_text:open_clip_cases",
    "x_transformers": "zoo_text:x_transformers_cases",
    "peft": "zoo_text:peft_cases",
    "torch_geometric": "zoo_graphs:torch_geometric_cases",
    "torchaudio": "zoo_sound:torchaudio_cases",
}
"""The function that returns each library's cases, and its module, which imports the library only when called."""

ON_CPU = {"torchvision": import_torchvision, "torchaudio": import_torchaudio}
"""Libraries that others import too, whose wheels need help with a CPU build of torch."""


def cases(library: str | None, chosen: str) -> Iterator[Case]:
    """Yield the models of one library, or of all, whose name contains ``chosen``."""
    for name, import_it in ON_CPU.items():
        if find_spec(name) is not None:
            import_it()
    for name in LIBRARIES if library is None else [library]:
        if find_spec(name) is None:
            print(f"{name}: not installed, skipped", file=sys.stderr)
            continue
        yield from _maker(name)(chosen)


def _maker(library: str) -> Callable[[str], Iterator[Case]]:
    module, _, function = LIBRARIES[library].partition(":")
    maker: Callable[[str], Iterator[Case]] = getattr(import_module(f"benchmarks.{module}"), function)
    return maker
