"""Estimate the training of third-party models: ``python -m benchmarks.cpu.zoo``.

Each model has random weights and is in train mode. AdamW takes two steps, on fake CPU and CUDA devices, and for real
under torch's profiler on the CPU if the model is small enough. With ``--eval``, two forwards in eval mode run instead.
The output is a line per model, then totals and reasons. The exit code says whether a model that runs for real has no
estimate.
"""

from __future__ import annotations

import argparse
import gc
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper
from typing import Any

import torch

from benchmarks.zoo.cases import Case
from benchmarks.zoo.libraries import LIBRARIES, cases
from torchsummary_plus import estimate_memory, measure_memory

BATCH = 2
PLACES = ("cpu", "cuda", "real")
MIB = 1 << 20
MOST_BYTES = 3 << 30
"""Steps with a larger predicted peak are not run for real."""


class Timeout(BaseException):
    """The time limit was exceeded. A BaseException, so that no library's ``except Exception`` catches it."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise :class:`Timeout` in a block that takes longer; only in the main thread on Unix."""

    def over(*_: Any) -> None:
        raise Timeout(f"more than {seconds} s")

    outer = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, outer)


@dataclass
class Trained:
    """The peaks of a model in bytes by place ("cpu", "cuda", "real"), or why there is none."""

    case: Case
    peaks: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    range_bytes: tuple[int, int] = (0, 0)
    """The ``peak_range`` of the estimate on the CPU."""
    unknown: tuple[str, ...] = ()
    """Operators in ``unknown`` of the estimate on the CPU."""

    @property
    def wrong(self) -> bool:
        """Whether an estimate failed although the model runs for real."""
        return "real" in self.peaks and ("cpu" not in self.peaks or "cuda" not in self.peaks)

    @property
    def is_outside(self) -> bool:
        """Whether the real peak is outside the range of its estimate."""
        least, most = self.range_bytes
        return "real" in self.peaks and "cpu" in self.peaks and not least <= self.peaks["real"] <= most

    def __str__(self) -> str:
        cells = [f"{self.peaks[at] / MIB:10.1f}" if at in self.peaks else f"{'-':>10}" for at in PLACES]
        error = ""
        if "real" in self.peaks and "cpu" in self.peaks:
            error = f"{self.peaks['cpu'] / self.peaks['real'] - 1:+.3%}"
        notes = [f"{at}: {why}" for at, why in self.failures.items()] + list(self.assumed[:1])
        if error and self.peaks["cpu"] != self.peaks["real"]:
            exact = f"{self.peaks['cpu']:,} for {self.peaks['real']:,}"
            notes += [f"{exact}, range {self.range_bytes[0]:,} to {self.range_bytes[1]:,}"]
            notes += ["OUTSIDE"] * self.is_outside + [f"unknown: {' '.join(self.unknown)}"] * bool(self.unknown)
        return f"{self.case.library + '/' + self.case.name:50} {' '.join(cells)} {error:>9}  {'; '.join(notes)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=LIBRARIES)
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--seconds", type=int, default=120, help="time limit of a model")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th model from the K-th")
    parser.add_argument("--eval", action="store_true", help="inference instead of training")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    first, step = map(int, options.part.split("/"))
    print(f"{'model':50} {'cpu MiB':>10} {'cuda MiB':>10} {'real MiB':>10} {'cpu/real':>9}")
    done = []
    for number, case in enumerate(cases(options.library, options.model)):
        if number % step == first:
            done.append(try_out(case, options.seconds, not options.eval))
            print(done[-1], flush=True)
            gc.collect()
    raise SystemExit(print_totals(done))


def try_out(case: Case, seconds: int, training: bool) -> Trained:
    """Return a model's peaks, predicted and measured."""
    outcome = Trained(case)
    try:
        torch.manual_seed(0)
        model = case.make().train(training)
        args, kwargs = inference_input(case)
    except Exception as error:
        outcome.failures["built"] = text_of(error)
        return outcome

    def attempt(place: str, run: Callable[[], int]) -> None:
        try:
            with torch.enable_grad(), time_limit(seconds):
                outcome.peaks[place] = run()
        except (Exception, Timeout) as error:
            outcome.failures[place] = text_of(error)

    mode: dict[str, Any] = {"optimizer": "adamw"} if training else {"mode": "eval"}

    def predicted(device: str) -> int:
        estimate = estimate_memory(model, input_data=(args, kwargs), device=device, **mode)
        outcome.assumed = estimate.assumptions
        if device == "cpu":
            outcome.range_bytes = estimate.peak_range
            outcome.unknown = tuple(name for name, _ in estimate.unknown)
        return estimate.peak_bytes

    for device in ("cpu", "cuda"):
        attempt(device, lambda device=device: predicted(device))
    if max(outcome.peaks.values(), default=16 * sum(p.numel() for p in model.parameters())) <= MOST_BYTES:
        forget(case.library)
        attempt("real", lambda: measure_memory(model, input_data=(args, kwargs), device="cpu", **mode).peak_bytes)
    return outcome


def forget(library: str) -> None:
    """Empty the caches of a library's functions, which a real forward of the estimate may have filled."""
    for cached in gc.get_objects():
        if isinstance(cached, _lru_cache_wrapper) and cached.__module__.partition(".")[0] == library:
            cached.cache_clear()


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"


def inference_input(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a forward, with a batch of 2 if the case leaves it open."""
    if case.size is not None:
        sizes = case.size if isinstance(case.size, list) else [case.size]
        return tuple(torch.rand(BATCH, *size) for size in sizes), {}
    return ((), case.data) if isinstance(case.data, dict) else (case.data, {})


def print_totals(done: list[Trained]) -> int:
    """Print the totals of each library; return the number of models that run for real but have no estimate."""
    for library in dict.fromkeys(trial.case.library for trial in done):
        mine = [trial for trial in done if trial.case.library == library]
        real = [trial for trial in mine if "real" in trial.peaks]
        cpu, cuda = (sum(at in trial.peaks for trial in mine) for at in ("cpu", "cuda"))
        both = sorted(abs(trial.peaks["cpu"] / trial.peaks["real"] - 1) for trial in real if "cpu" in trial.peaks)
        middle = f"; median error on the CPU {both[len(both) // 2]:.3%}, worst {both[-1]:.3%}" if both else ""
        failed = sum(trial.wrong for trial in real)
        print(
            f"{library}: {len(mine)} models, {cpu} estimates on cpu, {cuda} on cuda;"
            f" {len(real)} ran for real, {failed} of these without an estimate,"
            f" {sum(error == 0 for error in both)} exact{middle};"
            f" {sum(trial.is_outside for trial in mine)} outside peak_range"
        )
    reasons = Counter((at, why.partition("(")[0][:100]) for trial in done for at, why in trial.failures.items())
    for (place, why), count in reasons.most_common():
        print(f"{count:4} {place}: {why}")
    unknown = Counter(name for trial in done for name in trial.unknown)
    for name, count in unknown.most_common():
        print(f"{count:4} models with unknown scratch memory of {name}")
    return sum(trial.wrong for trial in done)


if __name__ == "__main__":
    main()
