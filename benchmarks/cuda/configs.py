"""The recorded configurations (models, precisions, optimizers, modes) and their predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from zlib import crc32

import torch
from torch import nn

from benchmarks.cuda.meters import Meter
from benchmarks.cuda.models import FAMILIES, Size, checkpointed
from torchsummary_plus import estimate_memory
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step.losses import default_loss
from torchsummary_plus.step.optimizers import OptimizerMaker

STEPS = 2

OPTIMIZERS: dict[str, OptimizerMaker | None] = {
    "none": None, "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
}  # fmt: skip
DTYPES = {"fp32": torch.float32, "amp": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The parameters' dtype; "amp" is bfloat16 autocast."""


@dataclass(frozen=True)
class Configuration:
    """A model, its first or second batch size, and its way of running."""

    family: str
    batch: int
    precision: str
    optimizer: str = "none"
    mode: str = "train"
    checkpointed: bool = False
    channels_last: bool = False
    held_out: bool = False
    small: bool = False

    @property
    def name(self) -> str:
        """The name in a recording.

        >>> Configuration("resnet50", 1, "amp", "adamw", channels_last=True).name
        'resnet50-b128-amp-adamw-channels_last'
        """
        traits = [trait for trait in ("checkpointed", "channels_last") if getattr(self, trait)]
        how = self.optimizer if self.mode == "train" else "eval"
        return "-".join([self.family, f"b{self.batch_size}", self.precision, how, *traits])

    @property
    def size(self) -> Size:
        return FAMILIES[self.family][self.small]

    @property
    def batch_size(self) -> int:
        return self.size.batches[self.batch]

    def build(self) -> nn.Module:
        """Return the model on ``meta``, in its dtype, layout and mode."""
        with torch.device("meta"):
            model = self.size.build()
        if self.checkpointed:
            model = checkpointed(model)
        model = model.to(DTYPES[self.precision])
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.train(self.mode == "train")

    def inputs(self, device: str) -> torch.Tensor:
        """Return an input on a device, allocated directly in its layout."""
        shape = (self.batch_size, *self.size.shape)
        if self.size.tokens:
            return torch.zeros(shape, dtype=torch.long, device=device).random_(self.size.tokens)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        x = torch.empty(shape, dtype=DTYPES[self.precision], device="meta", memory_format=layout)
        return torch.zeros_like(x, device=device)

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.precision == "amp" else None

    def run(self, model: nn.Module, x: torch.Tensor, meter: Meter) -> None:
        """Run the steps, phase by phase; the output is freed after the loss, and gradients by ``zero_grad()``."""
        factory = OPTIMIZERS[self.optimizer]
        optimizer = factory(list(model.parameters())) if factory is not None and self.mode == "train" else None
        losses: list[torch.Tensor] = []
        for _ in range(STEPS):
            if self.mode == "eval":
                meter.phase("forward", lambda: infer(model, x))
                continue
            meter.phase("forward", lambda: losses.append(self._loss(model, x, meter.device)))
            meter.phase("backward", lambda: losses.pop().backward())
            if optimizer is not None:
                meter.phase("optimizer", optimizer.step)
            meter.phase("forward", model.zero_grad)

    def _loss(self, model: nn.Module, x: torch.Tensor, device: str) -> torch.Tensor:
        with torch.autocast(device, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            return default_loss(model(x))

    def predict(self, device: str = "cuda", gpu: str | None = None) -> MemoryEstimate:
        """Return the estimate for a GPU, given by name."""
        return estimate_memory(
            self.build(), input_data=self.inputs("meta"), device=device, mode=self.mode,
            optimizer=OPTIMIZERS[self.optimizer], autocast=self.autocast, steps=STEPS, gpu=gpu, progress=False,
        )  # fmt: skip


@torch.no_grad()
def infer(model: nn.Module, x: torch.Tensor) -> None:
    model(x)


def configurations(small: bool = False) -> list[Configuration]:
    """Return all configurations; half of each precision, drawn by the checksums of their names, are held out."""
    every = list(_configurations())
    drawn = sorted(every, key=lambda c: (c.precision, crc32(c.name.encode())))
    held_out = set(drawn[::2])
    return [replace(c, small=small, held_out=c in held_out) for c in every]


def _configurations() -> Iterator[Configuration]:
    for family in FAMILIES:
        yield Configuration(family, 0, "fp32", "adamw")
    for family in FAMILIES:
        yield Configuration(family, 1, "amp", "adamw")
        yield Configuration(family, 1, "bf16", mode="eval")
    for family in ("vgg16", "resnet50", "mobilenet_v2", "unet"):
        yield Configuration(family, 1, "fp32", "momentum")
        yield Configuration(family, 0, "fp32", mode="eval")
    for family in ("resnet18", "vit", "bert", "diffusion"):
        yield Configuration(family, 0, "fp16", "sgd")
    for family in ("gpt2", "llama", "t5", "vit"):
        yield Configuration(family, 1, "bf16", "fused")
        yield Configuration(family, 0, "fp32", "sgd")
    for family in ("gpt2", "llama", "bert", "resnet50"):
        yield Configuration(family, 1, "amp", "adamw", checkpointed=True)
    for family in ("resnet50", "unet"):
        yield Configuration(family, 1, "amp", "momentum", channels_last=True)
