"""Predict random training programs on GPUs: ``python -m benchmarks.gpu_drawn --card H100,T4 --count 50 --seed 1``.

Each program is a model of images, sequences, signals or volumes, and a way of training or running it: precision,
optimizer, layout, checkpoints, accumulation, ``cudnn.benchmark``, clipping, averages. It runs on the no-op runtime
(benchmarks/nocuda) and is estimated there, each in its own process. The benchmark prints the programs whose peak or
reserved bytes differ. Programs that do not run there do not count.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cuda import ways
from benchmarks.cuda.drawn_models import Maps, Sequences
from benchmarks.cuda.meters import CudaMeter
from benchmarks.cuda.processes import card_name, in_child
from benchmarks.cuda.programs import differing, print_verdicts, requested
from benchmarks.cuda.sequence import SequenceMeter, predicted_changes
from benchmarks.cuda.truth import placed
from benchmarks.cuda.ways import AUTOCAST, MAKERS, PARAMETERS, STEPS, Way, flags, inference
from benchmarks.programs import judge
from torchsummary_plus.results.memory_estimate import MemoryEstimate

SIZES = {1: (4096, 8192, 16000), 2: (64, 96, 160, 224), 3: (16, 32)}
"""Side lengths of signals, images and volumes."""
OPTIMIZERS = ("sgd", "momentum", "adamw", "fused", "adam", "8bit")
PRECISIONS = ("fp32", "fp32", "amp", "amp", "amp16", "tf32", "ieee", "bf16")
FIGURES = ("peak_bytes", "reserved_bytes")
FAR = 0.02
"""The relative error of reserved bytes from which a program is printed, as is any error of the peak."""

Answer = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """Program ``number`` of a seed."""

    seed: int
    number: int
    held_out: bool = True

    @property
    def name(self) -> str:
        return f"{self.seed}:{self.number}"

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """Return the program's size and way."""
        rng = random.Random(f"gpu {self.seed}:{self.number}")
        kind = rng.choice(["image", "image", "image", "sequence", "sequence", "sequence", "signal", "volume"])
        axes = {"image": 2, "signal": 1, "volume": 3}.get(kind, 0)
        trains = rng.random() < 0.8
        traits = [trait for trait in ("checkpointed", "accumulated") if trains and rng.random() < 0.15]
        traits += [trait for trait in ("channels_last", "benchmark") if axes == 2 and rng.random() < 0.25]
        traits += [trait for trait in ("clipped", "averaged", "smoothed", "zeroed") if trains and rng.random() < 0.12]
        return {
            "axes": axes,
            "batch": rng.choice([1, 2, 3, 4, 8] if axes == 3 else [2, 4, 7, 8, 16, 32]),
            "side": rng.choice(SIZES[axes]) if axes else rng.choice([16, 64, 100, 128, 256, 333, 512]),
            "channels": rng.choice([1, 3, 4]),
            "vocabulary": rng.choice([1000, 10_000, 32_000]),
            "way": Way(rng.choice(PRECISIONS), rng.choice(OPTIMIZERS) if trains else "none", tuple(traits)),
            "seed": rng.random(),
        }

    @property
    def way(self) -> Way:
        way: Way = self.drawn["way"]
        return way

    def has(self, trait: str) -> bool:
        return trait in self.way.traits

    def build(self) -> nn.Module:
        """Return the model on ``meta``."""
        rng, drawn = random.Random(self.drawn["seed"]), self.drawn
        model: nn.Module
        with torch.device("meta"):
            if drawn["axes"]:
                model = Maps(rng, drawn["axes"], drawn["channels"], self.has("checkpointed"))
            else:
                model = Sequences(rng, drawn["vocabulary"], drawn["side"], self.has("checkpointed"))
        model = model.to(PARAMETERS.get(self.way.precision, torch.float32))
        if self.has("channels_last"):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.train(self.way.mode == "train")

    def inputs(self, device: str) -> Tensor:
        """Return the model's input on a device."""
        drawn = self.drawn
        if not drawn["axes"]:
            return torch.zeros(drawn["batch"], drawn["side"], dtype=torch.long, device=device)
        layout = torch.channels_last if self.has("channels_last") else torch.contiguous_format
        shape, dtype = (drawn["batch"], drawn["channels"], *[drawn["side"]] * drawn["axes"]), self.way.precision
        x = torch.empty(shape, dtype=PARAMETERS.get(dtype, torch.float32), device="meta", memory_format=layout)
        return torch.zeros_like(x, device=device)

    def step(self, model: nn.Module) -> Callable[..., None]:
        """Return the program's step."""
        autocast = AUTOCAST.get(self.way.precision)
        if self.way.mode == "eval":
            return inference(autocast)
        make = MAKERS[self.way.optimizer]
        assert make is not None
        optimizer, scaler = (
            make(list(model.parameters())),
            torch.amp.GradScaler("cuda", enabled=autocast == torch.float16),
        )
        average = deepcopy(model).requires_grad_(False) if self.has("averaged") else None

        def train(model: nn.Module, x: Tensor) -> None:
            for part in x.chunk(2) if self.has("accumulated") else (x,):
                with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
                    loss = self.loss(model(part), part)
                scaler.scale(loss).backward()
            if self.has("clipped"):
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=not self.has("zeroed"))
            if average is not None:
                with torch.no_grad():
                    for mean, parameter in zip(average.parameters(), model.parameters()):
                        mean.lerp_(parameter, 0.01)

        return train

    def loss(self, output: Tensor, x: Tensor) -> Tensor:
        """Return the loss: cross-entropy of tokens, classes or pixels, or a distance to maps."""
        smoothing = 0.1 if self.has("smoothed") else 0.0
        if output.dim() > 2 and output.shape[1] == 1:
            return F.binary_cross_entropy_with_logits(output, torch.ones_like(output))
        if not x.is_floating_point() and output.dim() == 3:
            targets = x[:, 1:].flatten()
            return F.cross_entropy(output[:, :-1].flatten(0, 1), targets, label_smoothing=smoothing)
        targets = torch.zeros((len(output), *output.shape[2:]), dtype=torch.long, device=output.device)
        return F.cross_entropy(output, targets, label_smoothing=smoothing)

    def predict(self, device: str = "cuda", gpu: str | None = None) -> MemoryEstimate:
        """Return the estimate for a GPU, given by name."""
        return ways.predicted(self, device, gpu)


def ran(program: Any, sequence: bool) -> Answer:
    """Return what a program allocates on the no-op runtime."""
    meter = SequenceMeter() if sequence else CudaMeter()
    try:
        meter.begin()
        model = placed(program.build(), "cuda")
        step = program.step(model)
        x = program.inputs("cuda")
        meter.hold([])
        args, kwargs = ((), x) if isinstance(x, dict) else (x if isinstance(x, tuple) else (x,), {})
        with flags(program.way):
            for _ in range(STEPS):
                meter.phase("step", lambda: step(model, *args, **kwargs))
        figures = meter.end()
    except Exception as error:
        return {"error": judge.described(error)}
    return {**{key: figures[key] for key in FIGURES}, "changes": getattr(meter, "changes", ())}


def predicted(program: Any, sequence: bool, gpu: str) -> Answer:
    """Return what the estimate predicts."""
    try:
        estimate = program.predict("cuda", gpu)
    except Exception as error:
        return {"error": judge.described(error)}
    changes = list(predicted_changes(estimate.log)) if sequence else ()
    answer = {key: getattr(estimate, key) for key in FIGURES}
    return {
        **answer,
        "range": estimate.peak_range,
        "notes": [*estimate.unknown, *estimate.assumptions],
        "changes": changes,
    }


def judged(program: Any, card: str) -> str:
    """Return the verdict for a program on a card, and print the differences."""
    real = in_child(partial(ran, program, False), card)
    if "error" in real:
        print(f"{card} {program.name} {program.way} {judge.INVALID}: {real['error'][:150]}", flush=True)
        return judge.INVALID
    prediction = in_child(partial(predicted, program, False, card_name(card)), card)
    if "error" in prediction:
        print(f"{card} {program.name} {program.way} {judge.CRASHED}: {prediction['error']}", flush=True)
        return judge.CRASHED
    errors = {key: prediction[key] / real[key] - 1 for key in FIGURES}
    low, high = prediction["range"]
    word = judge.EXACT
    if errors["peak_bytes"]:
        inside = low <= real["peak_bytes"] <= high
        word = (judge.INSIDE if prediction["notes"] else judge.UNSAID) if inside else judge.OUTSIDE
    if errors["peak_bytes"] or abs(errors["reserved_bytes"]) > FAR:
        figures = ", ".join(f"{key} {real[key]:,} ({errors[key]:+.3%})" for key in FIGURES)
        print(f"{card} {program.name} {program.way} {word}: {figures} {prediction['notes']}", flush=True)
    if errors["peak_bytes"]:
        real, prediction = (
            in_child(partial(ran, program, True), card),
            in_child(partial(predicted, program, True, card_name(card)), card),
        )
        if "changes" in real:
            print(differing(real["changes"], prediction["changes"]), flush=True)
    if abs(errors["reserved_bytes"]) > FAR:
        return f"{word}, reserved far"
    return word


def main() -> None:
    options = requested("benchmarks.cuda.drawn", __doc__, count=50)
    cards = options.cards
    print_verdicts(judged(Drawn(options.seed, number), cards[number % len(cards)]) for number in options.numbers)


if __name__ == "__main__":
    main()
