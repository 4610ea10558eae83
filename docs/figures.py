"""Draw the figures of the pages: ``python -m docs.figures``, with matplotlib installed."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.mobilenet_v2 import MobileNetV2
from examples.resnet import resnet18, resnet50
from examples.vgg import vgg16
from examples.vit import vit_b_16
from torchsummary_plus import compare, estimate_memory

IMAGES = Path(__file__).parent / "images"
GPU = "RTX 4090"

MODELS = {
    "VGG-16": vgg16,
    "ResNet-18": resnet18,
    "ResNet-50": resnet50,
    "MobileNetV2": MobileNetV2,
    "ViT-B/16": vit_b_16,
}


def main() -> None:
    """Save the timeline of a training step, and a comparison of five models."""
    step = estimate_memory(resnet50(), (3, 224, 224), 256, gpu=GPU, optimizer="adamw", loss="cross_entropy")
    step.save(IMAGES / "timeline.png", memory=GPU)
    with torch.device("meta"):
        models = [build() for build in MODELS.values()]
    memory = {"device": "cuda", "batch_size": 32, "optimizer": "adamw"}
    comparison = compare(*models, input_size=(3, 224, 224), names=list(MODELS), memory=memory)
    comparison.save(IMAGES / "models.png")


if __name__ == "__main__":
    main()
