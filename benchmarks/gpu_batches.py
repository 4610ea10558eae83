"""Check predicted largest batches by trial: ``python -m benchmarks.gpu_batches --card A100,T4``.

``max_batch_size`` predicts a batch. The no-op runtime (benchmarks/nocuda), with the largest context that a prediction
subtracts, then runs two steps of it and of the next batch on an empty GPU. A prediction is correct if its batch runs
and the next one is out of memory. A larger batch may still run, because the caching allocator is not monotone. A file
for each GPU keeps predictions and trials, and the next run continues from there. ``--card real`` tries this machine's
GPU, whose context takes less than a prediction subtracts.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_processes import REAL, card_name, has_gpu, in_child, run_on, warm_up
from benchmarks.gpu_programs import CARDS
from benchmarks.gpu_truth import attempt, built
from benchmarks.gpu_truth_configs import OPTIMIZERS, Configuration
from benchmarks.gpu_truth_files import DATA
from benchmarks.gpu_truth_libraries import families
from benchmarks.gpu_truth_meters import Meter
from benchmarks.gpu_truth_models import FAMILIES
from benchmarks.gpu_truth_ways import Variant, Way, flags
from benchmarks.nocuda.cards import card_path
from benchmarks.nocuda.runtime import is_active
from torchsummary_plus import max_batch_size
from torchsummary_plus.live.compat import autocast_available

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
    """A configuration whose largest batch is predicted."""

    name: str

    @cached_property
    def configuration(self) -> Configuration | Variant:
        """Return the configuration, at any batch size."""
        if self.name in FAMILIES:
            return Configuration(self.name, 0, "fp32", "adamw")
        return Variant(families()[self.name], 0, WAYS[LIBRARY.index(self.name) % len(WAYS)])

    def at(self, batch: int) -> Any:
        """Return the configuration at a batch size."""
        if isinstance(self.configuration, Configuration):
            return Batched(self.configuration, batch)
        return replace(self.configuration, family=replace(self.configuration.family, batches=(batch, batch)))

    def predict(self, gpu: str) -> tuple[int, bool]:
        """Return the largest batch, and whether it and the next one were traced."""
        small = self.at(2)
        model = small.build()
        options: dict[str, Any] = {"input_data": small.inputs("meta"), "progress": False}
        if isinstance(self.configuration, Configuration):
            limit = max_batch_size(model, None, gpu, optimizer=OPTIMIZERS["adamw"], **options)
        else:
            with flags(self.configuration.way), autocast_available():
                own = self.configuration.step(model) if self.configuration.way.mode == "train" else None
                limit = max_batch_size(model, None, gpu, mode=self.configuration.way.mode, train_step=own, **options)
        return limit.batch_size, limit.is_proved


@dataclass(frozen=True)
class Batched:
    """A configuration in plain torch, at any batch size."""

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


Line = dict[str, Any]
"""A model's name, the predicted batch, whether it and the next one were traced, and whether each of them runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--card",
        required=True,
        help=CARDS,
    )
    parser.add_argument("--only", default="", help="a regular expression that a model's name must contain")
    parser.add_argument("--seconds", type=int, default=300, help="start no further prediction or trial after this time")
    parser.add_argument("--again", action="store_true", help="also repeat what the files already contain")
    options = parser.parse_args()
    cards = [""] if options.card == REAL else options.card.split(",")
    names = [name for name in (*FAMILIES, *LIBRARY) if re.search(options.only, name)]
    turns = [(card, name) for name in names for card in cards]
    if not is_active():
        ask = partial(in_child_if_real, predicted)
        go_through(turns, ask, lambda line: options.again or "predicted" not in line, options.seconds)
    run_on(options.card.split(","), "benchmarks.gpu_batches")
    warm_up()
    go_through(turns, tried, waits, options.seconds)
    print(*map(outcome, cards), sep="\n")


def go_through(
    turns: Iterable[tuple[str, str]], ask: Callable[[str, Line], Line], lacks: Callable[[Line], bool], seconds: int
) -> None:
    """Predict and try each model on each GPU that has no result yet; the files are written after each step."""
    began = time.monotonic()
    for card, name in turns:
        lines = read(card)
        line = lines.get(name, {"name": name})
        if lacks(line) and time.monotonic() - began < seconds:
            lines[name] = ask(card, line)
            print(f"{card:8} {json.dumps(lines[name])} {time.monotonic() - began:.0f} s", flush=True)
            write(card, lines)


def in_child_if_real(ask: Callable[[str, Line], Line], card: str, line: Line) -> Line:
    """Return a prediction; where the GPU is real, a child makes it, because a process that uses CUDA cannot fork."""
    return in_child(partial(ask, card, line))


def waits(line: Line) -> bool:
    """Return whether a prediction has not been tried yet."""
    return "predicted" in line and not {"fits", "error"} & line.keys()


def path_of(card: str) -> Path:
    kind = f"noop_{card_path(card).stem}" if card else re.sub("[^a-z0-9]+", "_", card_name(card).lower())
    return DATA / f"gpu_batches_{kind}.json"


def read(card: str) -> dict[str, Line]:
    """Return a GPU's lines by model."""
    path = path_of(card)
    return {line["name"]: line for line in json.loads(path.read_text())["models"]} if path.exists() else {}


def write(card: str, lines: Mapping[str, Line]) -> None:
    import torch

    runtime = {"runtime": "no-op", "card": card_path(card).stem} if card else {"runtime": "CUDA", "gpu": card_name("")}
    head = json.dumps({**runtime, "torch": torch.__version__})
    models = ",\n".join(json.dumps(lines[name]) for name in (*FAMILIES, *LIBRARY) if name in lines)
    path_of(card).write_text(f'{head[:-1]},\n"models":[\n{models}\n]}}\n')


def outcome(card: str) -> str:
    """Return how many of a GPU's predictions are correct."""
    tried_ones = [line for line in read(card).values() if "fits" in line]
    return f"{card}: {sum(map(is_right, tried_ones))} of {len(tried_ones)} right"


def is_right(line: Line) -> bool:
    """Return whether the predicted batch runs and the next one does not.

    >>> is_right({"predicted": 8, "fits": True, "next_fits": False})
    True
    """
    return bool(line["fits"]) and not line["next_fits"]


def predicted(card: str, line: Line) -> Line:
    """Return the largest batch of a model on a GPU, as predicted."""
    batch, is_proved = Asked(line["name"]).predict(card_name(card))
    return {"name": line["name"], "predicted": batch, "proved": is_proved}


def tried(card: str, line: Line) -> Line:
    """Return whether the predicted batch and the next one run."""
    subject, batch = Asked(line["name"]), line["predicted"]
    try:
        line = {**line, "fits": not batch or runs(subject, batch, card), "next_fits": runs(subject, batch + 1, card)}
        if not card and line["next_fits"]:
            line["fails_at"] = next((more for more in larger(batch) if not runs(subject, more, card)), None)
        return line
    except RuntimeError as error:
        return {**line, "error": str(error)}


def larger(batch: int) -> Iterator[int]:
    """Yield batches that are larger by 1, 2, 3 and 5 %.

    >>> list(larger(100))
    [101, 102, 103, 105]
    """
    yield from (batch + max(1, batch * percent // 100) for percent in (1, 2, 3, 5))


def runs(subject: Asked, batch: int, card: str) -> bool:
    """Return whether two steps of a batch run on an empty GPU. Raises RuntimeError if they fail for another reason."""
    configuration = subject.at(batch)
    model = None if has_gpu() else built(configuration)
    if isinstance(model, str):
        raise RuntimeError(f"{configuration.name}: {model}")
    record = in_child(partial(attempt, configuration, model, "cuda"), card)
    if "error" in record and "OutOfMemoryError" not in record["error"]:
        raise RuntimeError(f"{configuration.name}: {record['error']}")
    return "error" not in record


if __name__ == "__main__":
    main()
