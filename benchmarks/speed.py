"""Compare the time and memory of a summary with torchsummary and torchinfo: ``python -m benchmarks.speed``.

Every tool prints its table, which is discarded, and each time is the minimum CPU time of several interleaved runs. The
last two columns are our time relative to each of the others. A goal refers to the faster tool that runs the requested
batch; torchsummary always runs 2. A batch that would take another tool minutes is reduced for it, and marked: the true
ratio is then lower than the one shown and judged. Run it with one thread, and close other programs first.
"""

from __future__ import annotations

import argparse
import io
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from examples.gpt2 import GPT2
from examples.llama import llama2_7b, llama2_70b, llama3_405b
from examples.mobilenet_v2 import MobileNetV2
from examples.resnet import resnet18, resnet50
from examples.vgg import vgg16
from examples.vit import vit_b_16

ROOT = Path(__file__).parents[1]
BATCHES = (-1, 1, 32, 128)
WARM_GOALS = {1: 1.0, 32: 0.1, 128: 0.1}
COLD_GOAL = 1.3
GIANT_GOALS_MS = {"llama2_70b": 3000.0, "llama3_405b": 5000.0}
GIANT_GOAL_MB = 150.0
SECONDS, BUDGET = 2.0, 10.0
"""The least time for all turns, and the most for one call."""


@dataclass(frozen=True)
class Subject:
    """A model to time. ``is_on_meta`` if its weights would not fit.

    ``most_really`` is the largest batch for a tool that computes the requested batch. With a larger one, a real forward
    would take minutes, or tens of GB.
    """

    make: Callable[[], nn.Module]
    size: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    is_on_meta: bool = False
    most_really: int = 128

    def build(self) -> nn.Module:
        """Return the model in eval mode."""
        with torch.device("meta" if self.is_on_meta else "cpu"):
            return self.make().eval()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


IMAGE = (3, 224, 224)
SUBJECTS = {
    "mlp": Subject(mlp, (64,)), "resnet18": Subject(resnet18, IMAGE), "resnet50": Subject(resnet50, IMAGE),
    "mobilenet_v2": Subject(MobileNetV2, IMAGE), "vgg16": Subject(vgg16, IMAGE, most_really=32),
    "vit_b_16": Subject(vit_b_16, IMAGE, most_really=32), "gpt2": Subject(GPT2, (1024,), torch.long, most_really=4),
    "llama2_7b": Subject(llama2_7b, (2048,), torch.long, True),
    "llama2_70b": Subject(llama2_70b, (2048,), torch.long, True),
    "llama3_405b": Subject(llama3_405b, (2048,), torch.long, True),
}  # fmt: skip


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


TOOLS = {"ours": ours, "torchsummary": torchsummary, "torchinfo": torchinfo}
PEERS = ("torchsummary", "torchinfo")
HEAD = " ".join([*(f"{name:>12}" for name in TOOLS), f"{'/t.summary':>10} {'/torchinfo':>10}"])
Calls = Mapping[str, Callable[[], object]]


def best(calls: Calls, turns: int) -> tuple[dict[str, float], dict[str, str]]:
    """Return the minimum seconds of each call, and why some failed.

    Calls take turns, so that other load on the machine affects all. The first turn warms up, and counts only for
    a call that has no other. A call that has used its budget is not repeated.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}
    done = 0
    while len(failed) < len(calls) and (done <= turns or sum(map(sum, times.values())) < SECONDS):
        for name, call in calls.items():
            if name not in failed and sum(times[name]) < BUDGET:
                started = time.process_time()
                try:
                    with redirect_stdout(io.StringIO()):
                        call()
                    times[name].append(time.process_time() - started)
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
        done += 1
    return {name: min(taken[1:] or taken) for name, taken in times.items() if name not in failed}, failed


def cold(tool: str, name: str) -> tuple[float, int]:
    """Return the CPU seconds and peak bytes of one new process; raises RuntimeError if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "benchmarks.speed", "--of", tool, name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(done.stdout.split()[-1])


def print_peak(tool: str, name: str) -> None:
    """Build a model, summarise it, and print the peak resident bytes of this process; ``getrusage`` counts a parent's.

    Tool "nothing" only builds the model, and model "nothing" is none.
    """
    if name != "nothing":
        model = SUBJECTS[name].build()
        if tool != "nothing":
            with redirect_stdout(io.StringIO()):
                TOOLS[tool](model, SUBJECTS[name], 1)
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    print(int(line.split()[1]) * 1024)


def verdict(value: float | None, goal: float | None) -> str:
    """Return whether a value meets its goal."""
    return "" if goal is None or value is None else f"goal {goal:g}: {'met' if value <= goal else 'MISSED'}"


def ratio(times: Mapping[str, float], peers: Iterable[str]) -> float | None:
    """Return our time relative to the faster of some tools, or None if none of them runs."""
    known = [times[name] for name in peers if name in times]
    return times["ours"] / min(known) if known else None


def cells(times: Mapping[str, float]) -> str:
    """Return the cells of a line: the times of the tools in milliseconds, and our time relative to each of them."""
    shown = [f"{1000 * times[name]:12.2f}" if name in times else f"{'fails':>12}" for name in TOOLS]
    ratios = (ratio(times, [peer]) for peer in PEERS)
    return " ".join([*shown, *(f"{'--' if value is None else f'{value:.3f}':>10}" for value in ratios)])


def warm(names: Iterable[str], batches: Sequence[int], turns: int) -> None:
    """Time a process that has summarised before; of models on ``meta``, also the memory of a new process."""
    print(f"\nWARM, ms (torchsummary always runs a batch of 2; -1 is an open batch)\n{'model':14} {'batch':>5} {HEAD}")
    bare = cold("nothing", "nothing")[1]
    for name in names:
        subject = SUBJECTS[name]
        models = {tool: subject.build() for tool in TOOLS}  # torchsummary leaves hooks in a model that fails.
        over = (cold("ours", name)[1] - bare) / 2**20 if subject.is_on_meta else 0.0
        failed: dict[str, str] = {}
        for batch in batches:
            calls = {tool: partial(run, models[tool], subject, batch) for tool, run in TOOLS.items()}
            times, failed = best(calls, turns)
            rivals = PEERS if batch <= 2 else PEERS[1:]
            met = verdict(ratio(times, rivals), None if over else WARM_GOALS.get(batch))
            if name in GIANT_GOALS_MS:
                met = f"{verdict(1000 * times['ours'], GIANT_GOALS_MS[name])} {verdict(over, GIANT_GOAL_MB)}"
            cut = f" (torchinfo: a batch of {subject.most_really})" if batch > subject.most_really else ""
            print(f"{name:14} {batch:5} {cells(times)}  {met}{cut}{f' {over:.1f} MB' if over else ''}", flush=True)
        for tool, why in failed.items():
            print(f"{'':14} {tool} fails: {why}")


def cold_processes(names: Iterable[str], turns: int) -> None:
    """Time a new process: start Python, import torch and the tool, build the model, summarise once at a batch of 1."""
    print(
        f"\nCOLD process, batch 1: ms in all, and MB of peak above one that only builds the model\n{'model':14} {HEAD}"
    )
    for name in names:
        times: dict[str, float] = {}
        peaks: dict[str, int] = {}
        for tool in ("nothing", *TOOLS) * turns:
            try:
                seconds, peak = cold(tool, name)
            except RuntimeError as error:
                print(f"{'':14} {tool} fails: {error}")
                continue
            times[tool] = min(seconds, times.get(tool, seconds))
            peaks[tool] = min(peak, peaks.get(tool, peak))
        over = ", ".join(f"{tool} {(peaks[tool] - peaks['nothing']) / 2**20:.1f}" for tool in TOOLS if tool in peaks)
        print(f"{name:14} {cells(times)}  MB: {over}  {verdict(ratio(times, PEERS), COLD_GOAL)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only three small models, with few repetitions")
    parser.add_argument("--only", choices=["warm", "cold"], help="run only one part")
    parser.add_argument("--models", nargs="+", choices=list(SUBJECTS), help="run only these models")
    parser.add_argument("--of", nargs=2, metavar=("TOOL", "MODEL"), help="print the peak bytes of one process")
    options = parser.parse_args()
    if options.of:
        print_peak(*options.of)
        return
    few = ("mlp", "resnet18", "llama2_7b") if options.quick else tuple(SUBJECTS)
    names, turns = options.models or few, 2 if options.quick else 7
    tools = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchsummary", "torchinfo"))
    print(f"Python {sys.version.split()[0]}, {tools}; {torch.get_num_threads()} threads")
    if options.only != "cold":
        warm(names, (1, 32) if options.quick else BATCHES, turns)
    if options.only != "warm":
        cold_processes([name for name in names if not SUBJECTS[name].is_on_meta], turns)


if __name__ == "__main__":
    main()
