"""Compare torch's operator database on the no-op runtime: ``python -m benchmarks.gpu_operators --card A100``.

The samples of ``benchmarks.memory_operators`` run once, in training forward and backward, on the no-op runtime
(benchmarks/nocuda), and are estimated there, each operator in its own process. ``--layout`` calls operators with
tensors in another layout, ``--dtype`` with another dtype, ``--mode eval`` without gradients, and ``--enlarge 1000000``
with tensors of up to a million elements. The benchmark prints each sample with a different peak, and the differing
allocations. Values are zeros in both.
"""

from __future__ import annotations

import argparse
import gc
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks import programs_judge
from benchmarks.gpu_processes import has_gpu, in_child, run_on, warm_up, without_gpu
from benchmarks.gpu_programs import differing
from benchmarks.gpu_truth import ERRORS, described, placed
from benchmarks.gpu_truth_sequence import SequenceMeter, predicted_changes
from benchmarks.memory_operators import FORMS, LAYOUTS, Sampled, enlarged, operators, samples
from torchsummary_plus import MemoryEstimate, estimate_memory
from torchsummary_plus.data.errors import SummaryError
from torchsummary_plus.step.losses import default_loss

SECONDS = 100
"""If the samples of an operator take longer, its process ends."""


class Viewed(Sampled):
    """A single operator, called with views of the model's tensors."""

    def forward(self, x: Tensor) -> Any:
        return self.called()


def run(model: Viewed, x: Tensor, mode: str) -> SequenceMeter:
    """Run one step on the no-op runtime."""
    gc.collect()
    meter = SequenceMeter()
    meter.begin()
    model = placed(model, "cuda")  # type: ignore[assignment]
    x = x.cuda()
    meter.hold([])
    losses: list[Any] = []
    with torch.set_grad_enabled(mode == "train"):
        if mode == "train":
            meter.phase("forward", lambda: losses.append(default_loss(model(x))))
            meter.phase("backward", lambda: losses.pop().backward())
        else:
            meter.phase("forward", lambda: model(x))
    meter.end()
    model.zero_grad()
    return meter


def prepare(model: Viewed) -> None:
    """Run the operator once on the CPU, after which a call with ``out`` knows the results' shapes."""
    with torch.no_grad():
        model(torch.zeros(1))


def judged(models: list[tuple[Viewed, Tensor]], mode: str, shown: bool) -> dict[str, Any]:
    """Return the verdict for each sample of an operator, and a text with the differences."""
    words: list[str] = []
    texts: list[str] = []
    while models:
        model, x = models.pop()
        signal.alarm(SECONDS)
        try:
            prepare(model)
            meter = run(model, x, mode)
        except (*ERRORS, AssertionError):
            words.append(programs_judge.INVALID)
            continue
        try:
            estimate = estimate_memory(
                model, input_data=x.cuda(), mode=mode, steps=1, gpu=torch.cuda.get_device_name(), progress=False
            )
        except (SummaryError, *ERRORS) as error:
            words.append(programs_judge.CRASHED)
            texts.append(f"{programs_judge.CRASHED}: {described(error)}")
            continue
        word, text = verdict(meter, estimate)
        words.append(word)
        if word in programs_judge.FAULTS or (shown and text):
            texts.append(text)
    return {"words": words, "texts": texts}


def verdict(meter: SequenceMeter, estimate: MemoryEstimate) -> tuple[str, str]:
    """Return the verdict for a sample, and the differences."""
    real, (low, high) = max(meter.peaks.values()), estimate.peak_range
    if estimate.peak_bytes == real:
        return programs_judge.EXACT, ""
    named = [*estimate.unknown, *estimate.assumptions]
    word = programs_judge.OUTSIDE
    if low <= real <= high:
        word = programs_judge.INSIDE if named else programs_judge.UNSAID
    changes = list(predicted_changes(estimate.log))
    error = estimate.peak_bytes / max(1, real) - 1
    text = f"{word}: {real:,}, predicted {estimate.peak_bytes:,} ({error:+.2%}) unknown: {list(estimate.unknown)}"
    return word, f"{text}\n{differing(list(meter.changes), changes)}"  # type: ignore[arg-type]


def models(options: argparse.Namespace) -> Iterator[tuple[str, list[tuple[Viewed, Tensor]]]]:
    """Yield the operators' names, with a model and an input for each of their samples."""
    with without_gpu():
        import_module("torch.testing._internal.common_methods_invocations")
    call = FORMS[options.form]
    part = slice(*(int(n) if n else None for n in options.slice.split(":")))
    trains, dtype = options.mode == "train", getattr(torch, options.dtype)
    for name, operator in operators(options.only, part, trains, dtype):
        with without_gpu():
            operator, known = call(operator), operator
            drawn = samples(known, dtype, trains, options.samples) if operator else []
        try:
            drawn = [enlarged(sample, options.enlarge) for sample in drawn]
            yield name, [(Viewed(operator, sample, options.layout), torch.zeros(1, dtype=dtype)) for sample in drawn]
        except (RuntimeError, NotImplementedError) as error:
            print(f"{name}: no samples in this layout, {described(error)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", default="A100", help="a GPU of benchmarks/nocuda, or real: the GPU of this machine")
    parser.add_argument("--only", default="", help="a regular expression that an operator's name must contain")
    parser.add_argument("--slice", default="::", help="a slice of the operators, from:to:step")
    parser.add_argument("--mode", default="train", choices=("train", "eval"))
    parser.add_argument("--dtype", default="float32", help="the dtype of the samples, such as int64 or bfloat16")
    parser.add_argument("--layout", default="contiguous", choices=tuple(LAYOUTS))
    parser.add_argument("--form", default="function", choices=FORMS, help="how the operators are called")
    parser.add_argument("--enlarge", type=int, default=0, help="the most elements of an enlarged tensor")
    parser.add_argument("--samples", type=int, default=3, help="samples of each operator, including the largest")
    parser.add_argument("--named", action="store_true", help="also print what is within a stated range")
    options = parser.parse_args()
    (card,) = run_on([options.card], "benchmarks.gpu_operators")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    warm_up()
    counts: Counter[str] = Counter()
    for name, every in models(options):
        judge = partial(judged, every, options.mode, options.named)
        outcome = judge() if has_gpu() else in_child(judge, card)  # the database's import uses a real GPU
        counts.update(outcome.get("words", [programs_judge.DIED]))
        for text in outcome.get("texts", [outcome.get("error", "")]):
            print(f"{name} {text}", flush=True)
    for word, count in counts.most_common():
        print(f"{count:6,} {word}")


if __name__ == "__main__":
    main()
