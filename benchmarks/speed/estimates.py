"""Measure the time and memory of ``estimate_memory`` itself: ``python -m benchmarks.speed.estimates``.

Training steps with AdamW of Llama shapes on ``meta`` and of a ResNet-50 are estimated, each in a new process: wall and
CPU seconds of the first and of later estimates, and the peak resident memory, including torch. Then time is measured
against the number of operators, on ever deeper models. The exit code says whether a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import torch

from benchmarks.speed.__main__ import verdict
from benchmarks.speed.fit import least_squares
from benchmarks.speed.models import BY_NAME
from benchmarks.speed.process import ROOT, peak_bytes
from examples.llama import LLAMA2_7B, Llama
from torchsummary_plus import estimate_memory

MIB = 1 << 20
MEMORY_GOAL_MIB = 500.0


@dataclass(frozen=True)
class Goal:
    """Time limits in seconds for the estimate of a model: the first of a process, and later ones."""

    name: str
    batch: int
    seconds: float
    warm: bool


GOALS = (Goal("llama2_7b", 1, 6.0, False), Goal("llama2_70b", 1, 15.0, False), Goal("resnet50", 32, 1.5, True))
DEVICES = ("cpu", "cuda")
WIDTHS = replace(LLAMA2_7B, width=512, heads=8, kv_heads=8, hidden=1376)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "DEVICE"), help="run one model in this process")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--depths", type=int, nargs="*", default=[2, 4, 8, 16, 32, 64, 128])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(timed(*options.one, options.batch)))
        return
    print(f"{'model':12} {'device':6} {'first s':>8} {'cpu s':>7} {'warm s':>8} {'cpu s':>7} {'MiB':>6}")
    missed = sum(not met(goal, device) for goal in GOALS for device in DEVICES)
    for device in DEVICES:
        fit(options.depths, device)
    raise SystemExit(missed)


def met(goal: Goal, device: str) -> bool:
    """Measure a model in a new process, and return whether it meets its goals."""
    command = ["-m", "benchmarks.speed.estimates", "--batch", str(goal.batch), "--one", goal.name, device]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    (first, first_cpu), *later = figures["seconds"]
    warm, warm_cpu = min(later)
    seconds, mib = warm if goal.warm else first, figures["peak_bytes"] / MIB
    times = f"{first:8.2f} {first_cpu:7.2f} {warm:8.2f} {warm_cpu:7.2f}"
    goals = f"{'warm' if goal.warm else 'first'} {verdict(seconds, goal.seconds)}; MiB {verdict(mib, MEMORY_GOAL_MIB)}"
    print(f"{goal.name:12} {device:6} {times} {mib:6.0f}  {goals}", flush=True)
    return seconds <= goal.seconds and mib <= MEMORY_GOAL_MIB


def timed(name: str, device: str, batch: int) -> dict[str, object]:
    """Return the wall and CPU seconds of three estimates, and the peak resident memory of the process in bytes."""
    subject = BY_NAME[name]
    model = subject.build()
    seconds = []
    for _ in range(3):
        wall, processor = time.perf_counter(), time.process_time()
        estimate_memory(model, subject.size, batch, device, [subject.dtype], optimizer="adamw")
        seconds.append((time.perf_counter() - wall, time.process_time() - processor))
    return {"seconds": seconds, "peak_bytes": peak_bytes()}


def fit(depths: list[int], device: str) -> None:
    """Print a linear fit of CPU time against the number of operators, on Llamas with more and more layers."""
    print(f"\nTIME against number of operators, {device}")
    points = []
    for depth in depths:
        with torch.device("meta"):
            model = Llama(replace(WIDTHS, depth=depth))
        least, operators = float("inf"), 0
        for _ in range(3):
            started = time.process_time()
            estimate = estimate_memory(model, (128,), 1, device, [torch.long], optimizer="adamw")
            least = min(least, time.process_time() - started)
            operators = len(estimate.log.moments)
        points.append((float(operators), least))
        print(f"{operators:9,} operators {1000 * least:9.1f} ms {1e6 * least / operators:7.2f} us each", flush=True)
    slope, start, r2 = least_squares(points)
    print(f"fit: {1e6 * slope:.2f} us per operator + {1000 * start:.1f} ms, r2 = {r2:.5f}")


if __name__ == "__main__":
    main()
