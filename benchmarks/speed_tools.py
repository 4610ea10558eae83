"""The three tools on equal terms: each runs the model once and writes its table, here to nowhere."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout

from torch import nn

from benchmarks.speed_models import Subject

Call = Callable[[], object]


def ours(model: nn.Module, subject: Subject, batch: int) -> None:
    """``batch`` -1 is the default: an open batch, which takes two passes."""
    from torchsummary_plus import summary

    summary(model, subject.size, batch, dtypes=subject.dtype)


def torchsummary(model: nn.Module, subject: Subject, batch: int) -> None:
    """It runs a batch of 2 whatever it is told, on floats, with autograd."""
    from torchsummary import summary

    summary(model, subject.size, batch, device="cpu")


def torchinfo(model: nn.Module, subject: Subject, batch: int) -> None:
    """Its cache is off, as by default; an open batch is one of 2, as in torchsummary."""
    from torchinfo import summary

    device = "meta" if subject.is_on_meta else "cpu"
    batch = 2 if batch == -1 else batch
    summary(model, input_size=(batch, *subject.size), dtypes=[subject.dtype], device=device, cache_forward_pass=False)


TOOLS: Mapping[str, Callable[[nn.Module, Subject, int], None]] = {
    "ours": ours,
    "torchsummary": torchsummary,
    "torchinfo": torchinfo,
}


def silent(call: Call) -> None:
    """Call with standard output going nowhere."""
    with redirect_stdout(io.StringIO()):
        call()


def best(calls: Mapping[str, Call], repetitions: int, budget: float) -> tuple[dict[str, float], dict[str, str]]:
    """The least seconds of each call, and why some failed.

    Calls take turns, so that what else the machine does falls on all. The first turn warms up and counts only for
    a call that has no other: none is begun once a call has had ``budget`` seconds, or ``repetitions`` turns.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}
    for _ in range(repetitions + 1):
        for name, call in calls.items():
            if name not in failed and sum(times[name]) < budget:
                try:
                    times[name].append(_seconds(call))
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return {name: min(taken[1:] or taken) for name, taken in times.items() if name not in failed}, failed


def _seconds(call: Call) -> float:
    started = time.perf_counter()
    silent(call)
    return time.perf_counter() - started
