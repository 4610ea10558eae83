"""Estimate the steps of random programs: ``python -m benchmarks.cpu.programs --count 2000 --seed 1``.

A grammar (``benchmarks/programs``) draws programs: a small model of any layers and operators, and a step. Each runs for
real under torch's profiler, is estimated, and runs again, in a child process with a time limit. Programs that do not
run for real do not count. The benchmark prints those whose estimate hangs, fails, misses the measured peak, or changes
something. ``--program`` prints one of them, ready to paste.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.programs.grammar import FOOTER, Program, draw
from benchmarks.programs.judge import DIED, EXACT, FAULTS, HUNG, INSIDE, INVALID, Verdict

ROOT = Path(__file__).parents[2]
SECONDS = 20.0
"""Time limit of a program."""
START = 600.0
"""Time limit for a child process to import torch."""


class Child:
    """A process that judges programs, restarted if it has to be killed."""

    def __init__(self, seconds: float = SECONDS, python: Sequence[str] = (sys.executable,)) -> None:
        self.seconds, self.python = seconds, python
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str] = queue.Queue()

    def _start(self) -> subprocess.Popen[str]:
        command = [*self.python, "-m", "benchmarks.programs.judge"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipe, silent = subprocess.PIPE, subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=silent, text=True
        )
        lines = self.lines = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        if not lines.get(timeout=START):
            raise RuntimeError(f"{' '.join(command)} does not start")
        return process

    def judge(self, source: str) -> Verdict:
        """Return the verdict for a program, whatever it does to the process."""
        if self.process is None:
            self.process = self._start()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(source) + "\n")
        self.process.stdin.flush()
        deadline, stage = time.monotonic() + self.seconds, "real"
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return self._ended(HUNG, stage)
            if not line:
                return self._ended(DIED, stage)
            message = json.loads(line)
            if "at" not in message:
                return Verdict(**message)
            stage = message["at"]

    def _ended(self, word: str, stage: str) -> Verdict:
        self.close()
        return Verdict(INVALID if stage == "real" else word, f"in its {stage} for {self.seconds:g} s")

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass(frozen=True)
class Judged:
    """A program, by its number, with its verdict."""

    number: int
    program: Program
    verdict: Verdict


def judged(
    seed: int, count: int, seconds: float = SECONDS, python: Sequence[str] = (sys.executable,), first: int = 0
) -> Iterator[Judged]:
    """Yield the programs of a seed with their verdicts, until ``count`` of them have run for real."""
    child = Child(seconds, python)
    try:
        for number in range(first, first + 10 * count):
            program = draw(seed, number)
            result = Judged(number, program, child.judge(program.source()))
            yield result
            count -= result.verdict.word != INVALID
            if not count:
                return
    finally:
        child.close()


def summary(done: Iterable[Judged]) -> str:
    """Return the number of programs with each verdict, and the worst error."""
    ran = [result for result in done if result.verdict.word != INVALID]
    words = Counter(result.verdict.word for result in ran)
    lines = [
        f"{words[word]:6,} {words[word] / len(ran):7.2%} {word}" for word in (EXACT, INSIDE, *FAULTS) if words[word]
    ]
    both = [result for result in ran if result.verdict.real_bytes and result.verdict.peak_bytes]
    worst = max(both, key=lambda result: abs(result.verdict.peak_bytes / result.verdict.real_bytes - 1))
    error = worst.verdict.peak_bytes / worst.verdict.real_bytes - 1
    return "\n".join([f"{len(ran):6,} programs", *lines, f"worst: {error:+.3%}, program {worst.number}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="number of programs that run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="start at this program, to run a seed in pieces")
    parser.add_argument("--program", type=int, help="print only this program")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of a program")
    options = parser.parse_args()
    if options.program is not None:
        child = Child(options.seconds)
        source = draw(options.seed, options.program).source()
        print(f"{source}{FOOTER}\n# {child.judge(source)}")
        return child.close()
    done = []
    for result in judged(options.seed, options.count, options.seconds, first=options.first):
        done.append(result)
        if result.verdict.word in FAULTS:
            print(f"{options.seed}:{result.number} {result.verdict}", flush=True)
    print(f"{summary(done)}\n{len(done) - options.count:6,} drawn that do not run for real")
    print(f"the next piece starts at --first {max(result.number for result in done) + 1}")
    raise SystemExit(any(result.verdict.word in FAULTS for result in done))


if __name__ == "__main__":
    main()
