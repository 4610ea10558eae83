"""Compare the time and memory of a summary with torchsummary and torchinfo: ``python -m benchmarks.speed``.

Every tool prints its table, and each time is the minimum of several interleaved runs. The last two columns are our time
relative to each of the others. A goal refers to the faster tool that runs the requested batch; torchsummary always runs
2. A batch that would take another tool minutes is reduced for it, and marked: the true ratio is then lower than the one
shown and judged. On a busy machine, measure with ``--clock cpu`` and one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from statistics import correlation, linear_regression
from typing import TypeAlias

import torch
from torch import nn

from benchmarks.speed.models import BY_NAME, GIANTS, SUBJECTS, Subject, chain
from benchmarks.speed.process import cold, import_seconds
from benchmarks.speed.tools import CLOCKS, TOOLS, Effort, best, ours

BATCHES = (-1, 1, 32, 128)
WARM_GOALS = {1: 1.0, 32: 0.1, 128: 0.1}
COLD_GOAL = 1.3
IMPORT_GOAL_MS = 30.0
GIANT_GOALS_MS = {"llama2_70b": 3000.0, "llama3_405b": 5000.0}
GIANT_GOAL_MB = 150.0
CHAINS = (1_000, 3_000, 10_000, 30_000, 100_000)
"""Numbers of modules for the linear fit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only three small models, with few repetitions")
    parser.add_argument("--only", choices=["warm", "giants", "cold", "import", "fit"], help="run only one part")
    parser.add_argument("--models", nargs="+", choices=list(BY_NAME), help="run only these models")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: CPU time")
    options = parser.parse_args()
    quick: bool = options.quick
    few = ("mlp", "resnet18", "mobilenet_v2", "llama2_7b") if quick else tuple(BY_NAME)
    names = options.models or few
    subjects, big = ([s for s in kind if s.name in names] for kind in (SUBJECTS, GIANTS))

    def effort(turns: int, budget: float = 10.0) -> Effort:
        return Effort(2 if quick else turns, 2.0, budget, options.clock)

    parts: Mapping[str, Callable[[], None]] = {
        "warm": lambda: warm(subjects, (1, 32) if quick else BATCHES, effort(7)),
        "giants": lambda: giants(big, effort(5)),
        "cold": lambda: cold_processes([subject.name for subject in subjects], effort(5)),
        "import": lambda: imports(effort(9)),
        "fit": lambda: fit(CHAINS[:3] if quick else CHAINS, effort(3, budget=30.0)),
    }
    print(describe_machine(), f"; {options.clock} clock", sep="")
    for name, part in parts.items():
        if options.only in (None, name):
            part()


def describe_machine() -> str:
    tools = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchsummary", "torchinfo"))
    load = os.getloadavg()[0]
    return (
        f"Python {platform.python_version()}, {tools}; {os.cpu_count()} CPUs, {torch.get_num_threads()} threads,"
        f" load before the run {load:.1f}"
    )


def verdict(value: float | None, goal: float | None) -> str:
    """Return whether a value meets its goal."""
    return "" if goal is None or value is None else f"goal {goal:g}: {'met' if value <= goal else 'MISSED'}"


def ms(seconds: float | None) -> str:
    return "fails" if seconds is None else f"{1000 * seconds:.2f}"


def ratio(times: Mapping[str, float], peers: Iterable[str]) -> float | None:
    """Return our time relative to the faster of some tools, or None if none of them runs."""
    known = [times[name] for name in peers if name in times]
    return times["ours"] / min(known) if known else None


def cells(times: Mapping[str, float]) -> str:
    """Return the cells of a line: the times of the tools, and our time relative to each of them."""
    ratios = [ratio(times, [peer]) for peer in PEERS]
    return " ".join([*(f"{ms(times.get(name)):>12}" for name in TOOLS), *map(share, ratios)])


def share(value: float | None) -> str:
    return f"{'--' if value is None else f'{value:.3f}':>10}"


PEERS = ("torchsummary", "torchinfo")
HEAD = " ".join([*(f"{name:>12}" for name in TOOLS), f"{'/t.summary':>10} {'/torchinfo':>10}"])


Models: TypeAlias = Mapping[str, nn.Module]


def models_of(subject: Subject) -> Models:
    """Return a model for each tool, because torchsummary leaves hooks in a model that fails."""
    return {name: subject.build() for name in TOOLS}


def turns(models: Models, subject: Subject, batch: int, effort: Effort) -> tuple[dict[str, float], dict[str, str]]:
    """Return the best times of all tools on a model, and why some failed."""
    return best({name: partial(tool, models[name], subject, batch) for name, tool in TOOLS.items()}, effort)


def print_failures(failed: Mapping[str, str]) -> None:
    for name, why in failed.items():
        print(f"{'':14} {name} fails: {why}")


def warm(subjects: Iterable[Subject], batches: Sequence[int], effort: Effort) -> None:
    """Time a process that has summarised before. Batch "open" is -1, our default and torchsummary's."""
    print(f"\nWARM, ms (torchsummary always runs a batch of 2)\n{'model':14} {'batch':>5} {HEAD}")
    for subject in subjects:
        models = models_of(subject)
        failed: dict[str, str] = {}
        for batch in batches:
            times, failed = turns(models, subject, batch, effort)
            rivals = PEERS if batch <= 2 else PEERS[1:]
            goal = verdict(ratio(times, rivals), WARM_GOALS.get(batch))
            cut = f" (torchinfo: a batch of {subject.most_really})" if batch > subject.most_really else ""
            print(f"{subject.name:14} {'open' if batch == -1 else batch:>5} {cells(times)}  {goal}{cut}", flush=True)
        print_failures(failed)


def giants(subjects: Iterable[Subject], effort: Effort) -> None:
    """Time models on ``meta``, whose weights are never allocated; the other tools are tried too."""
    print("\nGIANTS on meta, 2048 tokens, ms; MB by which the peak of a fresh process exceeds that of `import torch`")
    print(f"{'model':14} {'batch':>5} {HEAD} {'MB':>7}")
    bare = cold("nothing", "nothing")[1]
    for subject in subjects:
        models = models_of(subject)
        over = (cold("ours", subject.name)[1] - bare) / 2**20
        failed: dict[str, str] = {}
        for batch in (1, 32, 128):
            times, failed = turns(models, subject, batch, effort)
            goal = GIANT_GOALS_MS.get(subject.name)
            met = f"{verdict(1000 * times['ours'], goal)} {verdict(over, goal and GIANT_GOAL_MB)}"
            print(f"{subject.name:14} {batch:5} {cells(times)} {over:7.1f}  {met}", flush=True)
        print_failures(failed)


def cold_processes(names: Iterable[str], effort: Effort) -> None:
    """Time a new process: start Python, import torch and the tool, build the model, summarise once at a batch of 1."""
    print("\nCOLD process, batch 1: ms in all, and of one that only builds the model; MB of peak above that one")
    print(f"{'model':14} {'build only':>12} {HEAD}  {'MB: ours':>9} {'torchsummary':>12} {'torchinfo':>9}")
    for name in names:
        times, peaks, failed = cold_turns(name, effort)
        over = {tool: f"{(peaks[tool] - peaks['nothing']) / 2**20:.1f}" for tool in peaks}
        memory = f"{over['ours']:>9} {over.get('torchsummary', 'fails'):>12} {over.get('torchinfo', 'fails'):>9}"
        goal = verdict(ratio(times, PEERS), COLD_GOAL)
        print(f"{name:14} {ms(times['nothing']):>12} {cells(times)}  {memory}  {goal}", flush=True)
        print_failures(failed)


def cold_turns(name: str, effort: Effort) -> tuple[dict[str, float], dict[str, int], dict[str, str]]:
    """Return the minimum seconds and peak bytes of new processes, by tool, and why some failed."""
    times: dict[str, float] = {}
    peaks: dict[str, int] = {}
    failed: dict[str, str] = {}
    for _ in range(effort.turns):
        for tool in ("nothing", *TOOLS):
            try:
                seconds, peak = cold(tool, name, effort.clock)
            except RuntimeError as error:
                failed[tool] = str(error)
                continue
            times[tool] = min(seconds, times.get(tool, seconds))
            peaks[tool] = min(peak, peaks.get(tool, peak))
    return times, peaks, failed


def imports(effort: Effort) -> None:
    """Time imports, beyond that of torch."""
    print("\nIMPORT after `import torch`, ms")
    for module in ("torch", "torchsummary_plus", "torchsummary_plus.api.table", "torchsummary", "torchinfo"):
        value = 1000 * min(import_seconds(module, effort.clock) for _ in range(effort.turns))
        goal = verdict(value, IMPORT_GOAL_MS if module == "torchsummary_plus" else None)
        print(f"{module:22} {value:9.2f}  {goal}", flush=True)


def fit(sizes: Sequence[int], effort: Effort) -> None:
    """Print the least-squares fit of time against number of calls, on chains of layers at a batch of 1."""
    print("\nTIME against number of calls, batch 1")
    seconds = []
    for calls in sizes:
        model, subject = chain(calls), Subject("chain", partial(chain, calls), (8,))
        times, _ = best({"ours": partial(ours, model, subject, 1)}, effort)
        seconds.append(times["ours"])
        each = times["ours"] / calls
        print(f"{calls:9,} calls {1000 * times['ours']:10.1f} ms {1e6 * each:8.2f} us per call", flush=True)
    slope, start = linear_regression(sizes, seconds)
    r2 = correlation(sizes, seconds) ** 2
    print(f"fit: {1e6 * slope:.2f} us per call + {1000 * start:.1f} ms, r2 = {r2:.5f}")


if __name__ == "__main__":
    main()
