"""Compare each rank's predicted memory with real gloo processes, measured by an interposed allocator.

    python -m benchmarks.ranks.truth [--record] [--only PART ...] [--exactly NAME ...] [--world 2 4] [--explain]

Without ``--record``, the measurements come from ``data/ranks_truth.json``. ``--explain`` runs the processes and lists
the differences, phase by phase.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import distributed as dist

from benchmarks.ranks.cases import CASES, Case, PipelineCase
from torchsummary_plus import estimate_memory
from torchsummary_plus.results.memory_estimate import MemoryEstimate

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "data" / "ranks_truth.json"
SPY = Path(__file__).with_name("spy.c")
STEPS = 2
SAME_KERNELS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Kernels of these instruction sets, used in recordings and predictions, allocate the same on any processor."""
SETTLE_S = 0.05
"""Seconds for gloo's threads to release the tensors of a collective."""


@dataclass(frozen=True)
class Truth:
    """The memory of a rank in the steps of a case: its peak and the rest; ``log`` has each change with its phase."""

    case: str
    world_size: int
    rank: int
    peak_bytes: int
    left_bytes: int
    log: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> tuple[str, int, int]:
        return self.case, self.world_size, self.rank


class _Event(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_long), ("mark", ctypes.c_int)]


def compiled_spy(folder: str) -> Path:
    """Compile the interposed allocator. Raises FileNotFoundError if there is no C compiler."""
    library = Path(folder) / "ranks_spy.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SPY, "-ldl", "-lpthread"], check=True)
    return library


def measured(names: list[str], world_size: int) -> list[Truth]:
    """Measure cases in a world of gloo processes, on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled_spy(folder)
        settings = {**SAME_KERNELS, "LD_PRELOAD": str(library), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.ranks.truth", "--worker", folder]
        ranks = [
            subprocess.Popen(
                [*command, "--world", str(world_size), "--rank", str(rank), "--only", *names],
                env={**os.environ, **settings},
                cwd=ROOT,
            )
            for rank in range(world_size)
        ]
        failed = [rank for rank, process in enumerate(ranks) if process.wait()]
        if failed:
            raise RuntimeError(f"the processes of ranks {failed} failed")
        lines = [line for file in Path(folder).glob("*.json") for line in file.read_text().splitlines()]
    records = [json.loads(line) for line in lines]
    return [Truth(**{**record, "log": tuple(map(tuple, record["log"]))}) for record in records]


def _worker(folder: str, names: list[str], world_size: int, rank: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    with (Path(folder) / f"{rank}.json").open("w", buffering=1) as file:
        for case in map(CASES.__getitem__, names):
            if isinstance(case, PipelineCase):
                _run(case)  # Allocations for the first message to another process do not belong to a step.
            file.write(json.dumps(asdict(_measure(case, world_size, rank))) + "\n")
    dist.destroy_process_group()


def _run(case: Case) -> None:
    model = case.build()
    case.train(model, *case.inputs())
    case.objects.clear()


def _measure(case: Case, world_size: int, rank: int) -> Truth:
    spy = ctypes.CDLL(os.environ["LD_PRELOAD"])
    spy.spy_count.restype = ctypes.c_long
    spy.spy_events.restype = ctypes.POINTER(_Event)
    phases = [""]

    def mark(phase: str) -> None:
        phases.append(phase)
        spy.spy_mark(len(phases) - 1)

    gc.collect()
    dist.barrier()
    spy.spy_start()
    mark("setup")
    model = case.build()
    inputs = case.inputs()
    gc.collect()
    for _ in range(STEPS):
        case.train(model, *inputs, mark=mark)
        time.sleep(SETTLE_S)
    spy.spy_stop()
    events, level, peak, phase, log = spy.spy_events(), 0, 0, "", []
    for number in range(spy.spy_count()):
        event = events[number]
        phase = phases[event.mark] if event.mark else phase
        level += event.bytes
        peak = peak if phase == "setup" else max(peak, level)
        log.append((phase, event.bytes))
    del model, inputs
    case.objects.clear()
    gc.collect()
    dist.barrier()
    return Truth(case.name, world_size, rank, peak, level, tuple(log))


def predicted(case: Case, world_size: int, rank: int) -> MemoryEstimate:
    """Predict the same in this process."""
    try:
        return estimate_memory(
            case.build, input_data=case.inputs(), train_step=case.train, steps=STEPS, world_size=world_size, rank=rank,
            progress=False,
        )  # fmt: skip
    finally:
        case.objects.clear()


def recorded() -> dict[tuple[str, int, int], Truth]:
    """Return the recorded measurements."""
    return {truth.key: truth for truth in (Truth(**fields) for fields in json.loads(DATA.read_text()))}


def with_same_kernels(module: str) -> None:
    """Continue with the kernels of the recordings: in this process if they are set, otherwise in a new one."""
    if any(os.environ.get(name) != value for name, value in SAME_KERNELS.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, **SAME_KERNELS})
    torch.set_num_threads(1)


def explain(truth: Truth, estimate: MemoryEstimate) -> None:
    """Print the sizes that only one of the two allocates, by phase."""
    log = estimate.log
    mine = Counter((log.moments[m].phase, nbytes) for m, _, nbytes in log.events if nbytes >= 64)
    real = Counter((phase, nbytes) for phase, nbytes in truth.log if nbytes >= 64 and phase != "setup")
    for name, sizes in (("real alone", real - mine), ("predicted alone", mine - real)):
        shown = sorted(((p, n, c) for (p, n), c in sizes.items() if p != "setup"), key=lambda entry: -entry[1])
        print(f"    {name}: " + ", ".join(f"{p} {n:,} x {c}" for p, n, c in shown[:12]))


def _record(truths: dict[tuple[str, int, int], Truth]) -> None:
    """Add measurements to the recorded ones, in place of earlier measurements of the same cases."""
    every = {**(recorded() if DATA.exists() else {}), **truths}
    fields = ("case", "world_size", "rank", "peak_bytes", "left_bytes")
    lines = [json.dumps({name: getattr(truth, name) for name in fields}) for _, truth in sorted(every.items())]
    DATA.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _is_exact(name: str, world_size: int, rank: int, truth: Truth, explains: bool) -> bool:
    """Print the estimate of a case beside its measurement, and return whether the peaks are equal."""
    begun = time.perf_counter()
    try:
        estimate = predicted(CASES[name], world_size, rank)
    except Exception as error:
        print(f"{name} [{world_size}:{rank}] FAILED {type(error).__name__}: {str(error)[:300]}")
        return False
    difference = estimate.peak_bytes - truth.peak_bytes
    print(
        f"{name:32s} [{world_size}:{rank}] real {truth.peak_bytes:>11,} error {difference:>+10,} "
        f"left {estimate.steady_bytes - truth.left_bytes:>+8,} {time.perf_counter() - begun:.1f} s"
    )
    if explains and difference:
        explain(truth, estimate)
    return difference == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--exactly", nargs="*", default=[])
    parser.add_argument("--world", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--ranks", nargs="*", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--worker")
    parser.add_argument("--rank", type=int)
    options = parser.parse_args()
    if options.worker:
        _worker(options.worker, options.only, options.world[0], options.rank)
        return
    warnings.simplefilter("ignore")
    with_same_kernels("benchmarks.ranks.truth")
    named = [name for name in CASES if name in options.exactly or any(part in name for part in options.only)]
    names = {size: [name for name in named or CASES if size in CASES[name].worlds] for size in options.world}
    if options.record or options.explain:
        truths = {truth.key: truth for size, cases in names.items() for truth in measured(cases, size)}
    else:
        truths = recorded() if DATA.exists() else {}
    if options.record:
        _record(truths)
        return
    ranks = {size: [rank for rank in range(size) if rank in options.ranks] for size in options.world}
    cases = [(name, size, rank) for size in options.world for name in names[size] for rank in ranks[size]]
    verdicts = []
    for case in cases:
        if case in truths:
            verdicts.append(_is_exact(*case, truths[case], options.explain))
        else:
            print(f"{case} is not recorded")
    print(f"{sum(verdicts)} of {len(verdicts)} exact")


if __name__ == "__main__":
    main()
