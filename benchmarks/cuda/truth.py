"""Record the memory of training steps on a GPU: ``python -m benchmarks.gpu_truth``, which takes up to 9 minutes.

``--card H100`` records on any machine what torch's CUDA build, its allocator and cuDNN's heuristics do for that GPU, on
the no-op runtime (benchmarks/nocuda). Kernels do nothing there, and the recording lists what cannot be known that way.

Each configuration starts from an empty cache and runs two training or inference steps. The recording has the
allocator's peaks, its reserved bytes and the device's used memory; a second file has the allocator's history.
``--device cpu`` runs small versions, measured by torch's profiler. ``--compare`` prints a recording next to the
predictions for its GPU, and the peaks outside ``peak_range``; ``--card`` chooses the GPU. Held-out configurations are
only for validation: nothing may be fitted to them.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import platform
import re
import statistics
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import torchsummary_plus
from benchmarks.cuda.configs import STEPS, configurations
from benchmarks.cuda.files import DATA, latest_recording, merge, recorded, recording_name, write
from benchmarks.cuda.meters import CpuMeter, CudaMeter, Meter
from benchmarks.cuda.processes import PART, REAL, has_gpu, in_child, part, run_on, warm_up, without_gpu
from benchmarks.nocuda.runtime import UNKNOWN, active_card_path, is_active
from torchsummary_plus.data.errors import SummaryError
from torchsummary_plus.live.structures import all_tensors
from torchsummary_plus.results.memory_estimate import MemoryEstimate

SETS = ("own", "libraries")
SECONDS = 500
"""No further configuration starts after this time, because a command may take 540 seconds."""


class Configured(Protocol):
    """A model and its way of running."""

    @property
    def name(self) -> str: ...

    @property
    def held_out(self) -> bool: ...

    def build(self) -> nn.Module:
        """Return the model on ``meta``."""

    def inputs(self, device: str) -> Any:
        """Return the model's input."""

    def run(self, model: nn.Module, x: Any, meter: Meter) -> None:
        """Run two steps on the meter's device, phase by phase."""

    def predict(self, device: str = "cuda", gpu: str | None = None) -> MemoryEstimate:
        """Return the estimate for a GPU, given by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--card",
        help="GPUs of benchmarks/nocuda (A100,T4); by default the machine's own",
    )
    parser.add_argument("--set", choices=SETS, default="own", help="models in plain torch, or from other libraries")
    parser.add_argument("--out", type=Path, help="the file to write; by default one in benchmarks/data")
    parser.add_argument("--part", type=part, default=slice(None), help=PART)
    parser.add_argument("--merge", type=Path, nargs="+", help="recordings of parts, to write to --out as one")
    parser.add_argument("--only", default="", help="a regular expression that a configuration's name must contain")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="start no configuration after this time")
    parser.add_argument(
        "--resume", action="store_true", help="record, or predict with the current code, only what is missing"
    )
    parser.add_argument(
        "--compare", type=Path, nargs="?", const=Path(), help="print a recording next to its predictions"
    )
    parser.add_argument("--write", action="store_true", help="with --compare: add the predictions to the recording")
    options = parser.parse_args()
    if options.merge is not None:
        merge(options.merge, options.out or parser.error("no --out"))
        return
    if options.compare is not None:
        path = options.compare
        if not path.name:
            path = latest_recording(options.card or parser.error("no --card"), options.set)
        compare_file(path, options.only, options.write, options.seconds, options.resume)
        return
    cards = [""] if options.device == "cpu" else run_on((options.card or REAL).split(","), "benchmarks.cuda.truth")
    record_cards(options, cards)


def record_cards(options: argparse.Namespace, cards: list[str]) -> None:
    """Record each GPU, saving the file as it goes."""
    began = time.monotonic()
    every = configured(options.set, options.device == "cpu")
    chosen = [c for c in every if re.search(options.only, c.name)][options.part]
    if options.device == "cuda":
        warm_up()
    headers = [in_child(partial(describe, options.device, options.set), card) for card in cards]
    paths = [options.out or DATA / recording_name(header) for header in headers]
    before = [recorded(path) if options.resume else {} for path in paths]
    missing = [c for c in chosen if any(c.name not in known for known in before)]
    wanted = every if options.resume else chosen
    for start in range(0, len(missing), SAVED):
        seconds = options.seconds - int(time.monotonic() - began)
        recordings = record_all(missing[start : start + SAVED], options.device, seconds, cards)
        for out, header, known, records in zip(paths, headers, before, recordings):
            known.update((record["name"], record) for record in records)
            write(out, header, [known.get(c.name) or {**identity(c), "error": NOT_REACHED} for c in wanted])
    print(f"written to {', '.join(map(str, paths))}")


NOT_REACHED = "not reached"
SAVED = 8
"""The file is written after this many configurations."""


def configured(which: str, small: bool = False) -> Sequence[Configured]:
    """Return the configurations of a set."""
    if which == "own":
        return configurations(small)
    from benchmarks.cuda.ways import variants

    return [variant for variant in variants() if variant.family.is_installed]


def describe(device: str, which: str = "own") -> dict[str, Any]:
    """Return the machine and its versions."""
    header: dict[str, Any] = {"device": device, "set": which, "gpu": platform.processor() or platform.machine()}
    if device == "cuda":
        header["gpu"] = torch.cuda.get_device_name()
        header["capability"] = torch.cuda.get_device_capability()
        header["total_bytes"] = torch.cuda.get_device_properties(0).total_memory
        header["cuda"] = torch.version.cuda
        header["cudnn"] = torch.backends.cudnn.version()
        header["runtime"] = "CUDA"
        if is_active():
            header.update(runtime="no-op", card=active_card_path().stem, unknown=UNKNOWN)
    if which == "libraries":
        from benchmarks.cuda.libraries import installed

        header["libraries"] = installed()
    return {**header, "torch": torch.__version__, "python": platform.python_version(), "steps": STEPS}


def record_all(
    chosen: Iterable[Configured], device: str, seconds: int = SECONDS, cards: Sequence[str] = ("",)
) -> list[list[dict[str, Any]]]:
    """Return a record of each configuration for each GPU, in order; a record notes a failure or a missing run."""
    began = time.monotonic()
    records: list[list[dict[str, Any]]] = [[] for _ in cards]
    for configuration in chosen:
        is_late = time.monotonic() - began > seconds
        model = None if is_late or has_gpu() else built(configuration)
        for card, into in zip(cards, records):
            if is_late:
                outcome = {"error": NOT_REACHED}
            else:
                outcome = in_child(partial(attempt, configuration, model, device), card)
            record = {**identity(configuration), **outcome}
            peak, error = record.get("peak_bytes", 0) / 2**20, record.get("error", "")
            print(f"{record['name']:44} {card:8} {peak:10,.1f} MiB {error}", flush=True)
            into.append(record)
    return records


def built(configuration: Configured) -> nn.Module | str:
    """Return the model on ``meta``, or why it cannot be built."""
    try:
        with without_gpu():
            return configuration.build()
    except ERRORS as error:
        return described(error)


ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, ImportError)


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def identity(configuration: Configured) -> dict[str, Any]:
    return {"name": configuration.name, "held_out": configuration.held_out}


def attempt(configuration: Configured, model: nn.Module | str | None, device: str) -> dict[str, Any]:
    """Return the record of a configuration, or its error; a real GPU's process builds the model, if None, itself."""
    if model is None:
        model = built(configuration)
    if isinstance(model, str):
        return {"error": model}
    try:
        return record(configuration, model, device)
    except ERRORS as error:
        return {"error": described(error)}
    finally:
        gc.collect()


def record(configuration: Configured, model: nn.Module, device: str, meter: Meter | None = None) -> dict[str, Any]:
    """Return the peak memory of two steps of a configuration."""
    meter = meter or (CudaMeter() if device == "cuda" else CpuMeter())
    meter.begin()
    model = placed(model, device)
    x = configuration.inputs(device)
    meter.hold([*model.parameters(), *model.buffers(), *all_tensors(x)])
    configuration.run(model, x, meter)
    return meter.end()


def placed(model: nn.Module, device: str) -> nn.Module:
    """Move a model on ``meta`` to a device as ``model.to`` does, filled with small numbers; tied tensors stay tied."""
    parameters: dict[int, nn.Parameter] = {}

    def full(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, 0.01, device=device, requires_grad=False)

    for module in moved(model):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in parameters:
                parameters[id(parameter)] = nn.Parameter(full(parameter), parameter.requires_grad)
            setattr(module, name, parameters[id(parameter)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = full(buffer)
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()
    return model


def moved(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a model's modules in the order in which ``model.to(device)`` moves their tensors: children first."""
    for child in model.children():
        yield from moved(child)
    yield model


def compare_file(path: Path, only: str, is_noted: bool, seconds: int = SECONDS, resumes: bool = False) -> None:
    """Print a recording next to the predictions, and optionally write these to the recording as they are made."""
    recording = json.loads(path.read_text())
    done = {r["name"] for r in recording["records"] if resumes and r.get("predicted", {}).get("code") == code()}

    def note() -> None:
        write(path, {key: value for key, value in recording.items() if key != "records"}, recording["records"])

    compare(recording, only, done, seconds, note if is_noted else lambda: None)


@cache
def code() -> str:
    """Return the checksum of the code that predicts."""
    package = Path(torchsummary_plus.__file__).parent
    rooms = ("data", "live", "ops", "trace", "step", "memory")
    sources = sorted(path for room in rooms for path in (package / room).rglob("*") if path.suffix in (".py", ".json"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:8]


def compare(
    recording: dict[str, Any],
    only: str = "",
    done: Container[str] = (),
    seconds: int = SECONDS,
    note: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Print each configuration's figures next to the predictions; return the relative errors of both kinds of bytes.

    Each record gets its prediction with the checksum of the code, or why there is none. The file is written regularly.
    Configurations in ``done`` are skipped, and no prediction starts after ``seconds``.
    """
    began = time.monotonic()
    known = {c.name: c for c in configured(recording.get("set", "own"), recording["device"] == "cpu")}
    gpu = recording["gpu"] if recording["device"] == "cuda" else None
    errors: dict[str, list[float]] = {"peak_bytes": [], "reserved_bytes": []}
    outside, widths = [], []
    print(f"{'configuration':44} {'':8} {'measured':>14} {'predicted':>14} {'error':>8}")
    for truth in recording["records"]:
        if "error" in truth or truth["name"] not in known or not re.search(only, truth["name"]):
            continue
        if truth["name"] in done or time.monotonic() - began > seconds:
            continue
        try:
            estimate = known[truth["name"]].predict(recording["device"], gpu)
        except (SummaryError, *ERRORS) as error:
            why = described(error)
            print(f"{truth['name']:44} not predicted: {why}", flush=True)
            truth["predicted"] = {"error": why, "code": code()}
            continue
        truth["predicted"] = {"code": code()}
        if "peak_bytes" in truth:
            low, high = estimate.peak_range
            widths.append(high / low - 1)
            if not low <= truth["peak_bytes"] <= high:
                outside.append(f"{truth['name']}: {truth['peak_bytes']:,}, not {low:,} to {high:,}")
        for key in errors:
            if key in truth:
                predicted = truth["predicted"][key] = getattr(estimate, key)
                errors[key].append(predicted / truth[key] - 1)
                half = "held out" if truth["held_out"] else ""
                print(
                    f"{truth['name']:44} {half:8} {truth[key]:14,} {predicted:14,} {errors[key][-1]:+8.2%}"
                    f" {key.removesuffix('_bytes')}",
                    flush=True,
                )
        if len(errors["peak_bytes"]) % SAVED == 0:
            note()
    note()
    for key, values in errors.items():
        if values:
            median, worst = percentile(values, 50), percentile(values, 95)
            print(f"{key}: median {median:.3%}, 95th percentile {worst:.3%} of {len(values)}")
    if widths:
        median, worst = percentile(widths, 50), percentile(widths, 95)
        print(f"peak_range: {len(outside)} of {len(widths)} outside; width: median {median:.2%}, 95th {worst:.2%}")
        print(*outside, sep="\n")
    return errors


def percentile(errors: list[float], rank: int) -> float:
    """Return a percentile of the errors' magnitudes.

    >>> percentile([0.01, -0.02, 0.03], 50)
    0.02
    """
    sizes = sorted(map(abs, errors))
    return statistics.median(sizes) if rank == 50 else sizes[min(len(sizes) - 1, rank * len(sizes) // 100)]


if __name__ == "__main__":
    main()
