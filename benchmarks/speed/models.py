"""The models whose summaries are timed, each with its input size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from examples.gpt2 import GPT2
from examples.llama import llama2_7b, llama2_70b, llama3_405b
from examples.mobilenet_v2 import MobileNetV2
from examples.resnet import resnet18, resnet50
from examples.vgg import vgg16
from examples.vit import vit_b_16


@dataclass(frozen=True)
class Subject:
    """A model to time. ``is_on_meta`` if its weights would not fit; the other tools then cannot run.

    ``most_really`` is the largest batch for a tool that computes the requested batch. With a larger one, a real forward
    would take minutes, or tens of GB.
    """

    name: str
    make: Callable[[], nn.Module]
    size: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    is_on_meta: bool = False
    most_really: int = 128

    def build(self) -> nn.Module:
        """Return the model in eval mode."""
        with torch.device("meta" if self.is_on_meta else "cpu"):
            return self.make().eval()


def mlp() -> nn.Module:
    """Return a two-layer perceptron."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def chain(modules: int) -> nn.Module:
    """Return a model of this many modules, each called once."""
    return nn.Sequential(*(nn.Identity() if index % 2 else nn.Linear(8, 8) for index in range(modules)))


IMAGE = (3, 224, 224)
SUBJECTS = (
    Subject("mlp", mlp, (64,)), Subject("resnet18", resnet18, IMAGE), Subject("resnet50", resnet50, IMAGE),
    Subject("mobilenet_v2", MobileNetV2, IMAGE), Subject("vgg16", vgg16, IMAGE, most_really=32),
    Subject("vit_b_16", vit_b_16, IMAGE, most_really=32), Subject("gpt2", GPT2, (1024,), torch.long, most_really=4),
)  # fmt: skip
GIANTS = (
    Subject("llama2_7b", llama2_7b, (2048,), torch.long, True),
    Subject("llama2_70b", llama2_70b, (2048,), torch.long, True),
    Subject("llama3_405b", llama3_405b, (2048,), torch.long, True),
)
BY_NAME = {subject.name: subject for subject in (*SUBJECTS, *GIANTS)}
