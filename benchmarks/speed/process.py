"""Summarise a model with one tool, or none, in a new process, and measure it from the parent process.

``python -m benchmarks.speed.process TOOL MODEL`` prints its peak resident memory in bytes. TOOL "nothing" stops after
building the model; MODEL "nothing" stops after importing torch.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""With compiled bytecode, as in an installed package; the first of several processes writes it."""


def main(tool: str, name: str) -> None:
    import torch  # noqa: F401

    if name != "nothing":
        from benchmarks.speed.models import BY_NAME

        subject = BY_NAME[name]
        model = subject.build()
        if tool != "nothing":
            from benchmarks.speed.tools import TOOLS, silent

            silent(lambda: TOOLS[tool](model, subject, 1))
    print(peak_bytes())


def peak_bytes() -> int:
    """Return the peak resident memory of this process; ``getrusage`` would also count its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM; this benchmark needs Linux")


def cold(tool: str, name: str, clock: str = "wall") -> tuple[float, int]:
    """Return the seconds and peak bytes of one new process; raises RuntimeError if it fails."""
    measure = time.perf_counter if clock == "wall" else children_seconds
    started = measure()
    command = [sys.executable, "-m", "benchmarks.speed.process", tool, name]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    seconds = measure() - started
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return seconds, int(done.stdout.split()[-1])


def children_seconds() -> float:
    """Return the CPU seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def import_seconds(module: str, clock: str = "wall") -> float:
    """Return the import time of a module in a new process that has imported torch; for torch itself, of torch."""
    first = "" if module == "torch" else "import torch; "
    read = "time.perf_counter()" if clock == "wall" else "time.process_time()"
    program = f"{first}import time; t = {read}; import {module}; print({read} - t)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
