"""Predict third-party models on GPUs in random ways: ``python -m benchmarks.gpu_zoo --card H100,T4 --library timm``.

Each program is a model of ``benchmarks.memory_zoo``, drawn at random, and a way of training or running it, as in
``benchmarks.gpu_drawn``. It runs on the no-op runtime (benchmarks/nocuda) and is estimated there, each in its own
process. The benchmark prints the programs whose peak or reserved bytes differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from benchmarks import gpu_truth_ways
from benchmarks.gpu_drawn import OPTIMIZERS, PRECISIONS, judged
from benchmarks.gpu_programs import print_verdicts, requested
from benchmarks.gpu_truth import ERRORS
from benchmarks.gpu_truth_ways import AUTOCAST, MAKERS, PARAMETERS, Way, again, inference, training
from benchmarks.zoo import Case
from benchmarks.zoo_libraries import cases
from torchsummary_plus.results.memory_estimate import MemoryEstimate

BATCHES = (2, 3, 4, 8)
"""Of models whose input is a size; others have a batch of their own."""


@dataclass(frozen=True)
class Shown:
    """A model of a library, and a way of running it."""

    case: Case
    way: Way
    batch: int

    @property
    def name(self) -> str:
        return f"{self.case.library}/{self.case.name} b{self.batch}"

    def build(self) -> nn.Module:
        """Return the model on ``meta``, in its dtype, layout and mode."""
        try:
            with torch.device("meta"):
                model = self.case.make()
        except ERRORS:
            model = self.case.make().to("meta")
        model = model.to(PARAMETERS.get(self.way.precision, torch.float32)).train(self.way.mode == "train")
        if "channels_last" in self.way.traits:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return again(model) if "checkpointed" in self.way.traits else model

    def inputs(self, device: str) -> Any:
        """Return zeros for the model's input, on a device."""
        dtype = PARAMETERS.get(self.way.precision, torch.float32)

        def zeros(tensor: Tensor) -> Tensor:
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            return torch.zeros(tensor.shape, dtype=kind, device=device)

        if self.case.size is None:
            return tree_map_only(Tensor, zeros, self.case.data)
        sizes = self.case.size if isinstance(self.case.size, list) else [self.case.size]
        return tuple(torch.zeros(self.batch, *size, dtype=dtype, device=device) for size in sizes)

    def step(self, model: nn.Module) -> Callable[..., None]:
        """Return a step of the model."""
        autocast = AUTOCAST.get(self.way.precision)
        make = MAKERS.get(self.way.optimizer)
        if make is None:
            return inference(autocast)
        scaler = torch.amp.GradScaler("cuda", enabled=autocast == torch.float16)
        return training(make(list(model.parameters())), scaler, autocast, parts=1)

    def predict(self, device: str = "cuda", gpu: str | None = None) -> MemoryEstimate:
        """Return the estimate for a GPU, given by name."""
        return gpu_truth_ways.predicted(self, device, gpu)


def drawn(rng: random.Random, case: Case) -> Shown:
    """Return a model in a random way."""
    trains = rng.random() < 0.7
    is_image = isinstance(case.size, tuple) and len(case.size) == 3
    traits = [name for name in ("channels_last", "benchmark") if is_image and rng.random() < 0.25]
    traits += ["checkpointed"] if trains and rng.random() < 0.15 else []
    way = Way(rng.choice(PRECISIONS), rng.choice(OPTIMIZERS) if trains else "none", tuple(traits))
    return Shown(case, way, rng.choice(BATCHES))


def programs(library: str, only: str, seed: int) -> Iterator[Shown]:
    """Yield a library's models in random order, each in one way."""
    rng = random.Random(f"zoo {seed}")
    with patch.multiple(torch.cuda, is_available=lambda: False, device_count=lambda: 0):
        every = list(cases(library, only))  # a process that uses CUDA cannot fork
    rng.shuffle(every)
    for case in every:
        yield drawn(rng, case)


def main() -> None:
    options = requested(
        "benchmarks.gpu_zoo", __doc__, 40, library="the library, as in memory_zoo", only="a part of the models' names"
    )
    every = list(programs(options.library or "timm", options.only or "", options.seed))
    cards = options.cards
    chosen = [(number, every[number]) for number in options.numbers if number < len(every)]
    print_verdicts(judged(program, cards[number % len(cards)]) for number, program in chosen)


if __name__ == "__main__":
    main()
