"""The three tools and their timing: each runs the model once, and its printed table is discarded."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass

from torch import nn

from benchmarks.speed.models import Subject

Call = Callable[[], object]


def ours(model: nn.Module, subject: Subject, batch: int) -> None:
    """Run ours. ``batch`` -1 is the default: an open batch, which takes two passes."""
    from torchsummary_plus import summary

    summary(model, subject.size, batch, dtypes=subject.dtype)


def torchsummary(model: nn.Module, subject: Subject, batch: int) -> None:
    """Run torchsummary, which always runs a batch of 2 floats, with autograd."""
    from torchsummary import summary

    summary(model, subject.size, batch, device="cpu")


def torchinfo(model: nn.Module, subject: Subject, batch: int) -> None:
    """Run torchinfo without its cache, as by default; an open batch is 2, and none exceeds ``most_really``."""
    from torchinfo import summary

    device = "meta" if subject.is_on_meta else "cpu"
    batch = 2 if batch == -1 else min(batch, subject.most_really)
    summary(model, input_size=(batch, *subject.size), dtypes=[subject.dtype], device=device, cache_forward_pass=False)


TOOLS: Mapping[str, Callable[[nn.Module, Subject, int], None]] = {
    "ours": ours,
    "torchsummary": torchsummary,
    "torchinfo": torchinfo,
}


def silent(call: Call) -> None:
    """Call a function with standard output discarded."""
    with redirect_stdout(io.StringIO()):
        call()


CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Effort:
    """The minimum of turns, and of ``seconds`` in all; ``budget`` seconds for one call; and the clock to read."""

    turns: int
    seconds: float = 2.0
    budget: float = 10.0
    clock: str = "wall"


def best(calls: Mapping[str, Call], effort: Effort) -> tuple[dict[str, float], dict[str, str]]:
    """Return the minimum seconds of each call, and why some failed.

    Calls take turns, so that other load on the machine affects all. The first turn warms up, and counts only for
    a call that has no other. A call that has used its budget is not repeated.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}
    done = 0
    while len(failed) < len(calls) and (done <= effort.turns or sum(map(sum, times.values())) < effort.seconds):
        for name, call in calls.items():
            if name not in failed and sum(times[name]) < effort.budget:
                try:
                    times[name].append(_seconds(call, CLOCKS[effort.clock]))
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        done += 1
    return {name: min(taken[1:] or taken) for name, taken in times.items() if name not in failed}, failed


def _seconds(call: Call, clock: Callable[[], float]) -> float:
    started = clock()
    silent(call)
    return clock() - started
