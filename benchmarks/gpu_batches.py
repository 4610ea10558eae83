"""The largest batch by prediction and by trial: ``python -m benchmarks.gpu_batches --card A100``.

``max_batch_size`` predicts a batch; the no-op runtime (benchmarks/nocuda), with the largest context that a prediction
subtracts, then runs two steps of it and of the next batch on an empty GPU. A prediction is right if the batch runs and
the next one is out of memory. The caching allocator is not monotone: if the next batch runs, further ones are tried,
and the line says where the first failure is; only the next batch counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_truth import attempt, in_child
from benchmarks.gpu_truth_configs import OPTIMIZERS, Configuration
from benchmarks.gpu_truth_libraries import families
from benchmarks.gpu_truth_meters import Meter
from benchmarks.gpu_truth_models import FAMILIES
from benchmarks.gpu_truth_ways import Variant, Way, flags
from benchmarks.nocuda.cards import card_path
from benchmarks.nocuda.runtime import is_active
from torchsummary_plus import max_batch_size

DATA = Path(__file__).parent / "data"
BEYOND = 16
"""Batches after the next that are tried where that one runs."""

WAYS = (Way("fp32", "adamw"), Way("amp", "adamw"), Way("fp32", "momentum"), Way("amp16", "sgd"), Way("bf16"))
LIBRARY = (
    "resnet34", "resnext50_32x4d", "efficientnet_b0", "densenet121", "convnext_tiny", "swin_t", "vit_b_32",
    "squeezenet1_1", "vgg11_bn", "seresnet50", "regnety_004", "mixer_s32_224", "deit_tiny_patch16_224",
    "res2net50_26w_4s", "repvgg_a0", "hf_bert", "hf_electra", "hf_gpt2", "hf_opt", "hf_llama", "hf_t5", "hf_bart",
    "hf_vit", "smp_unet_resnet18", "smp_fpn_resnet18", "diffusers_unet2d",
)  # fmt: skip
"""In one of the ways above each."""


@dataclass(frozen=True)
class Asked:
    """A configuration whose batch is asked for."""

    name: str

    @cached_property
    def one(self) -> Configuration | Variant:
        """The configuration, at whatever batch."""
        if self.name in FAMILIES:
            return Configuration(self.name, 0, "fp32", "adamw")
        return Variant(families()[self.name], 0, WAYS[LIBRARY.index(self.name) % len(WAYS)])

    def at(self, batch: int) -> Any:
        """The configuration at a batch."""
        if isinstance(self.one, Configuration):
            return Batched(self.one, batch)
        return replace(self.one, family=replace(self.one.family, batches=(batch, batch)))

    def predict(self, gpu: str) -> tuple[int, bool]:
        """The largest batch, and whether it was traced with the next one."""
        small = self.at(2)
        model = small.build()
        asked: dict[str, Any] = {"input_data": small.inputs("meta"), "progress": False}
        if isinstance(self.one, Configuration):
            found = max_batch_size(model, None, gpu, optimizer=OPTIMIZERS["adamw"], **asked)
        else:
            with flags(self.one.way):
                own = self.one.step(model) if self.one.way.mode == "train" else None
                found = max_batch_size(model, None, gpu, mode=self.one.way.mode, train_step=own, **asked)
        return found.batch_size, found.is_proved


@dataclass(frozen=True)
class Batched:
    """One of the configurations in plain torch, at another batch than its two."""

    inner: Configuration
    batch: int
    held_out: bool = False

    @property
    def name(self) -> str:
        return f"{self.inner.family}-b{self.batch}"

    def build(self) -> Any:
        return self.inner.build()

    def inputs(self, device: str) -> Any:
        return self.inner.inputs(device)[:1].repeat(self.batch, *(1 for _ in self.inner.size.shape))

    def run(self, model: Any, x: Any, meter: Meter) -> None:
        self.inner.run(model, x, meter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", required=True)
    parser.add_argument("--models", default="", help="only names that contain one of these comma-separated texts")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or DATA / f"gpu_batches_noop_{card_path(options.card).stem}.json"
    if not is_active():
        out.write_text(json.dumps(predicted(options.card, options.models.split(","))))
        judge = ["-m", "benchmarks.nocuda", "--card", options.card, "-m", "benchmarks.gpu_batches"]
        os.execv(sys.executable, [sys.executable, *judge, *sys.argv[1:]])
    found = json.loads(out.read_text())
    for line in found["models"]:
        line.update(tried(line["name"], line["predicted"]))
        print(line, flush=True)
    right = sum(line["right"] for line in found["models"])
    print(f"{options.card}: {right} of {len(found['models'])} right")
    lines = ",\n".join(json.dumps(line) for line in found.pop("models"))
    out.write_text(f'{json.dumps(found)[:-1]},\n"models":[\n{lines}\n]}}\n')


def predicted(card: str, chosen: list[str]) -> dict[str, Any]:
    """The largest batch of each model on a card, by prediction."""
    import torch

    gpu = json.loads(card_path(card).read_text())["name"]
    names = [name for name in (*FAMILIES, *LIBRARY) if any(text in name for text in chosen)]
    lines = []
    for name in names:
        batch, is_proved = Asked(name).predict(gpu)
        lines.append({"name": name, "predicted": batch, "proved": is_proved})
        print(f"{name:32} {batch:8,}", flush=True)
    return {"runtime": "no-op", "card": card_path(card).stem, "torch": torch.__version__, "models": lines}


def tried(name: str, batch: int) -> dict[str, Any]:
    """Whether a batch runs, and the first after it that does not, within some."""
    asked = Asked(name)
    if batch and not runs(asked, batch):
        return {"right": False, "fits": False}
    beyond = next((step for step in range(1, BEYOND) if not runs(asked, batch + step)), BEYOND)
    return {"right": beyond == 1, "fits": True, "first_failure": batch + beyond}


def runs(asked: Asked, batch: int) -> bool:
    """Whether two steps of a batch run on an empty card."""
    configuration = asked.at(batch)
    found = in_child(partial(attempt, configuration, configuration.build(), "cuda"))
    if "error" in found and "OutOfMemoryError" not in found["error"]:
        raise RuntimeError(f"{configuration.name}: {found['error']}")
    return "error" not in found


if __name__ == "__main__":
    main()
