"""Estimate random programs on a GPU: ``python -m benchmarks.gpu_programs --card H100 --count 500 --seed 1``.

The programs of ``benchmarks.cpu.programs`` run on the no-op runtime (benchmarks/nocuda), with CUDA as the default
device, and are estimated there, each in its own process. The benchmark prints programs whose estimate fails or whose
peak differs, with the operators that allocate different sizes. Programs that do not run there do not count: those with
cuFFT, cuSOLVER or values that become invalid as zeros. Sizes that depend on values are those of zeros.
"""

from __future__ import annotations

import argparse
import gc
import io
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.cuda.processes import in_child, run_on, warm_up
from benchmarks.cuda.sequence import Change, SequenceMeter, predicted_changes, tell
from benchmarks.programs import judge
from benchmarks.programs.grammar import draw
from torchsummary_plus import estimate_memory

CARDS = "GPUs of benchmarks/nocuda, which take turns (A100,T4), or real: the GPU of this machine"
SECONDS = 100
ROUNDED = 512
SHOWN = 12

Answer = dict[str, Any]


def source_of(seed: int, number: int) -> str:
    """Return a program whose autocast is CUDA's."""
    return draw(seed, number).source().replace('torch.autocast("cpu"', 'torch.autocast("cuda"')


def ran(source: str) -> Answer:
    """Return what a program's steps allocate on the no-op runtime."""
    torch.set_default_device("cuda")
    torch.zeros(1)
    space = judge.prepared(source)
    gc.collect()
    gc.disable()
    meter, autocast = SequenceMeter(), torch.autocast
    meter.begin()
    meter.hold([])
    with patch.object(torch, "autocast", lambda _, dtype=None, **how: autocast("cuda", dtype=dtype, **how)):
        meter.phase("steps", lambda: judge.run(space))
    meter.end()
    return {"peak": max(meter.peaks.values()), "changes": meter.changes}


def predicted(source: str) -> Answer:
    """Return what the estimate predicts."""
    torch.set_default_device("cuda")
    space = judge.prepared(source)
    estimate = estimate_memory(space["model"], input_data=space["inputs"], **space["options"])
    changes = list(predicted_changes(estimate.log))
    return {"peak": estimate.peak_bytes, "range": estimate.peak_range, "changes": changes, "unknown": estimate.unknown,
            "assumptions": estimate.assumptions}  # fmt: skip


def answered(call: Callable[[str], Answer], source: str) -> Answer:
    """Return the result of a call, or its error."""
    signal.alarm(SECONDS)
    try:
        return call(source)
    except Exception as error:
        return {"error": judge.described(error)}


def judged(seed: int, number: int, card: str) -> str:
    """Return the verdict for a program, and print the differences."""
    source = source_of(seed, number)
    real = in_child(partial(answered, ran, source), card)
    if "error" in real:
        return judge.INVALID
    prediction = in_child(partial(answered, predicted, source), card)
    if "error" in prediction:
        print(f"{seed}:{number} {judge.CRASHED}: {prediction['error']}", flush=True)
        return judge.CRASHED
    if prediction["peak"] == real["peak"]:
        return judge.EXACT
    low, high = prediction["range"]
    named = prediction["unknown"] or prediction["assumptions"]
    word = judge.OUTSIDE
    if low <= real["peak"] <= high:
        word = judge.INSIDE if named else judge.UNSAID
    error = prediction["peak"] / real["peak"] - 1
    print(f"{seed}:{number} {word}: {real['peak']:,}, predicted {prediction['peak']:,} ({error:+.3%}) {named or ''}")
    print(differing(real["changes"], prediction["changes"]), flush=True)
    return word


def differing(real: list[list[Any]], prediction: list[list[Any]]) -> str:
    """Return the operators that allocate different sizes, rounded to the allocator's blocks."""

    def blocks(changes: list[list[Any]]) -> list[Change]:
        return [Change(-(-abs(size) // ROUNDED) * ROUNDED * (1 if size > 0 else -1), name) for size, name in changes]

    with redirect_stdout(io.StringIO()) as text:
        tell(blocks(real), blocks(prediction), SHOWN)
    return "\n".join(line for line in text.getvalue().splitlines() if "bytes: " in line)


def requested(module: str, description: str | None, count: int, **further: str) -> argparse.Namespace:
    """Return the options of a benchmark of drawn programs, once it runs on the no-op runtime.

    ``cards`` are the GPUs and ``numbers`` those of the programs; ``further`` options are given with their help.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--card", default="H100", help=CARDS)
    parser.add_argument("--seed", type=int, default=0, help="seed of the programs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--count", type=int, default=count, help="number of programs to draw")
    parser.add_argument("--program", type=int, help="only this program")
    for name, meaning in further.items():
        parser.add_argument(f"--{name}", help=meaning)
    options = parser.parse_args()
    options.cards = run_on(options.card.split(","), module)
    warnings.simplefilter("ignore")
    warm_up()
    options.numbers = range(options.first, options.first + options.count)
    if options.program is not None:
        options.numbers = [options.program]
    return options


def print_verdicts(verdicts: Iterable[str]) -> None:
    """Print how often each verdict was reached, and its share of the programs that ran."""
    counts = Counter(verdicts)
    ran_in_all = max(1, sum(counts.values()) - counts[judge.INVALID])
    for verdict, count in counts.most_common():
        print(f"{count:6,} {count / ran_in_all:7.2%} {verdict}")


def main() -> None:
    options = requested("benchmarks.cuda.programs", __doc__, count=500)
    cards = options.cards
    print_verdicts(judged(options.seed, number, cards[number % len(cards)]) for number in options.numbers)


if __name__ == "__main__":
    main()
