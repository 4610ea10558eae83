"""Estimate whether a ResNet-50 and a 7B Llama fit on four GPUs, trained with AdamW, and how long a step takes.

    python examples/will_it_fit.py

No GPU is needed and nothing is allocated. The program prints memory and time of both models on each GPU; then, for each
model, the memory of a training step, the module with the most memory, and the effect of mixed precision, checkpointing
and a frozen backbone on two of the GPUs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))  # So that the file runs from any directory.

from examples.llama import Layer, llama2_7b
from examples.resnet import Bottleneck, resnet50
from torchsummary_plus import estimate_memory, max_batch_size

CARDS = ("RTX 4090", "H200")
RENTED = ("RTX 4090", "L40S", "A100 80GB", "H200")
GIB = 1024**3

Change = Callable[[nn.Module], dict[str, Any]]
"""A change to a model before training; it returns options of ``estimate_memory``."""


def as_it_is(model: nn.Module) -> dict[str, Any]:
    """Train every parameter in float32 and keep every activation."""
    return {}


def mixed_precision(model: nn.Module) -> dict[str, Any]:
    """Run the forward under autocast; parameters, gradients and optimizer state stay float32."""
    return {"autocast": torch.bfloat16}


def checkpointing(model: nn.Module) -> dict[str, Any]:
    """Keep only each block's input, and run the block again in the backward."""
    for block in model.modules():
        if isinstance(block, (Bottleneck, Layer)):
            vars(block)["forward"] = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return {}


def frozen_backbone(model: nn.Module) -> dict[str, Any]:
    """Train only the last linear layer."""
    *_, last = (module for module in model.modules() if isinstance(module, nn.Linear))
    model.requires_grad_(False)
    last.requires_grad_(True)
    return {}


CHANGES: tuple[Change, ...] = (as_it_is, mixed_precision, checkpointing, frozen_backbone)


def report(name: str, build: Callable[[], nn.Module], size: tuple[int, ...], batch: int) -> None:
    """Print the estimate of a model's training step, and a table with a row per change."""
    lines = []
    for change in CHANGES:
        with torch.device("meta"):
            model = build()
        options = {"optimizer": "adamw", "loss": "cross_entropy", **change(model)}
        step = estimate_memory(model, size, batch, gpu=CARDS[-1], **options)
        if change is as_it_is:
            print(f"{name}\n{step}\n")
        largest = [max_batch_size(model, size, card, **options).batch_size for card in CARDS]
        holder = max(step.by_module[1:], key=lambda module: module.own_bytes)
        fits = ["yes" if step.fits(card) else "no" for card in CARDS]
        peaks = [f"{nbytes / GIB:.2f}" for nbytes in (step.peak_bytes, step.reserved_bytes)]
        largest_module = f"{holder.path} ({holder.own_bytes / GIB:.2f} GiB)"
        lines.append(
            [change.__name__.replace("_", " "), *peaks, step.peak_phase, largest_module, *fits, *map(str, largest)]
        )
    fits_in, largest_on = [f"fits {card}" for card in CARDS], [f"largest on {card}" for card in CARDS]
    headings = [f"batch of {batch}", "peak GiB", "reserved GiB", "peak in", "largest module", *fits_in, *largest_on]
    print(tabulate(lines, headings, disable_numparse=True), "\n")


MODELS: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...], int], ...] = (
    ("ResNet-50, 224 x 224 images", resnet50, (3, 224, 224), 256),
    ("Llama 2 7B, 2,048 tokens", llama2_7b, (2048,), 1),
)


def side_by_side() -> None:
    """Print memory and time of both models, trained in mixed precision, on four GPUs: two traces in all."""
    lines: dict[str, list[str]] = {card: [card] for card in RENTED}
    headings = ["\n\nGPU"]
    for name, build, size, batch in MODELS:
        with torch.device("meta"):
            model = build()
        options: dict[str, Any] = {"autocast": torch.bfloat16, "optimizer": "adamw", "loss": "cross_entropy"}
        step = estimate_memory(model, size, batch, gpu=RENTED[0], **options)
        unit = "samples" if step.time().tokens_per_second is None else "tokens"
        title = f"{name}\nbatch of {batch}: {step.peak_bytes / GIB:.1f} GiB"
        headings += [f"{title}\nfits", "\n\ntime of a step", f"\n\n{unit}/s"]
        for card in RENTED:
            time = step.time(card)
            seconds, _, _ = str(time).partition(" on ")
            rate = time.tokens_per_second or time.samples_per_second
            lines[card] += [str(step.fits(card)), seconds, f"{rate:,.0f}"]
    print("Training with AdamW in bfloat16 mixed precision, predicted without a GPU\n")
    print(tabulate(lines.values(), headings, disable_numparse=True, colalign=["left", *["left", "left", "right"] * 2]))
    print("\nThe time of a step that does not fit is that of such a GPU with enough memory.\n")


def main() -> None:
    side_by_side()
    for name, build, size, batch in MODELS:
        report(name, build, size, batch)


if __name__ == "__main__":
    main()
