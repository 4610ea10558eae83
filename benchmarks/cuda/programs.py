"""Estimate random programs on GPUs: ``python -m benchmarks.cuda.programs --card H100,T4 --count 500 --seed 1``.

The programs of ``benchmarks/programs`` run on the no-op runtime (benchmarks/nocuda), with CUDA as the default device,
and are estimated there, each in its own process; ``--scale 8`` draws them in sizes for a GPU. The benchmark prints
programs whose estimate fails or whose peak differs, with the operators that allocate different sizes. Programs that do
not run there do not count: those with cuFFT, cuSOLVER or values that become invalid as zeros. Sizes that depend on
values are those of zeros.
"""

from __future__ import annotations

import argparse
import gc
import random
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.cuda.processes import in_child, run_on, warm_up
from benchmarks.cuda.sequence import SequenceMeter, differing, predicted_changes
from benchmarks.programs import judge
from benchmarks.programs.grammar import draw
from torchsummary_plus import estimate_memory

SECONDS = 100
SHOWN = 12
FAR = 0.02
"""The relative error from which reserved bytes count as far off."""
SETTINGS = (
    "", "torch.backends.cudnn.benchmark = True", "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
)  # fmt: skip
"""What programs in sizes for a GPU set first."""

Answer = dict[str, Any]


def source_of(seed: int, number: int, scale: int) -> str:
    """Return a program whose autocast is CUDA's."""
    source = draw(seed, number, scale).source().replace('torch.autocast("cpu"', 'torch.autocast("cuda"')
    if scale == 1:
        return source
    setting = random.Random(f"settings {seed}:{number}").choice(SETTINGS)
    return source.replace("torch.manual_seed(0)", f"torch.manual_seed(0)\n{setting}", 1)


def ran(source: str) -> Answer:
    """Return what a program's steps allocate on the no-op runtime."""
    torch.set_default_device("cuda")
    torch.zeros(1)
    space = judge.prepared(source)
    gc.collect()
    gc.disable()
    meter, autocast = SequenceMeter(), torch.autocast
    meter.begin()
    meter.hold()
    with patch.object(torch, "autocast", lambda _, dtype=None, **how: autocast("cuda", dtype=dtype, **how)):
        meter.run(lambda: judge.run(space))
    figures = meter.end()
    return {"peak": figures["peak_bytes"], "reserved": figures["reserved_bytes"], "changes": meter.changes}


def predicted(source: str) -> Answer:
    """Return what the estimate predicts."""
    torch.set_default_device("cuda")
    space = judge.prepared(source)
    estimate = estimate_memory(space["model"], input_data=space["inputs"], **space["options"])
    changes = list(predicted_changes(estimate.log))
    return {"peak": estimate.peak_bytes, "reserved": estimate.reserved_bytes, "range": estimate.peak_range,
            "changes": changes, "named": [*estimate.unknown, *estimate.assumptions]}  # fmt: skip


def answered(call: Callable[[str], Answer], source: str) -> Answer:
    """Return the result of a call, or its error."""
    signal.alarm(SECONDS)
    try:
        return call(source)
    except Exception as error:
        return {"error": judge.described(error)}


def judged(seed: int, number: int, scale: int, card: str) -> str:
    """Return the verdict for a program, and print the differences."""
    source: str = in_child(lambda: {"source": source_of(seed, number, scale)}, card)["source"]  # Drawing runs it.
    name = f"{card} {seed}:{number}"
    real = in_child(partial(answered, ran, source), card)
    if "error" in real:
        return judge.INVALID
    prediction = in_child(partial(answered, predicted, source), card)
    if "error" in prediction:
        print(f"{name} {judge.CRASHED}: {prediction['error']}", flush=True)
        return judge.CRASHED
    word, (low, high) = judge.EXACT, prediction["range"]
    if prediction["peak"] != real["peak"]:
        inside = low <= real["peak"] <= high
        word = (judge.INSIDE if prediction["named"] else judge.UNSAID) if inside else judge.OUTSIDE
        error = prediction["peak"] / real["peak"] - 1
        print(f"{name} {word}: {real['peak']:,}, predicted {prediction['peak']:,} ({error:+.3%}) {prediction['named']}")
        print(differing(real["changes"], prediction["changes"], SHOWN), flush=True)
    reserved = prediction["reserved"] / real["reserved"] - 1
    if scale > 1 and abs(reserved) > FAR:
        print(f"{name} reserved: {real['reserved']:,}, predicted {prediction['reserved']:,} ({reserved:+.3%})")
        return f"{word}, reserved far off"
    return word


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cards = "GPUs of benchmarks/nocuda, which take turns (A100,T4), or real: the GPU of this machine"
    parser.add_argument("--card", default="H100", help=cards)
    parser.add_argument("--seed", type=int, default=0, help="seed of the programs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--count", type=int, default=500, help="number of programs to draw")
    parser.add_argument("--scale", type=int, default=1, help="how much larger than for a CPU the models are")
    parser.add_argument("--program", action="store_true", help="print the first program")
    options = parser.parse_args()
    if options.program:
        sys.exit(source_of(options.seed, options.first, options.scale))
    devices = run_on(options.card.split(","), "benchmarks.cuda.programs")
    warnings.simplefilter("ignore")
    warm_up()
    verdicts = Counter(
        judged(options.seed, number, options.scale, devices[number % len(devices)])
        for number in range(options.first, options.first + options.count)
    )
    ran_in_all = max(1, verdicts.total() - verdicts[judge.INVALID])
    for verdict, number in verdicts.most_common():
        print(f"{number:6,} {number / ran_in_all:7.2%} {verdict}")


if __name__ == "__main__":
    main()
