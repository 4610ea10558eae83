"""Record the memory of training steps on a GPU: ``python -m benchmarks.cuda.truth``.

``--card H100`` records on any machine what torch's CUDA build, its allocator and cuDNN's heuristics do for that GPU, on
the no-op runtime (benchmarks/nocuda). Kernels do nothing there, and the recording lists what cannot be known that way.

Each configuration starts from an empty cache and runs two training or inference steps. The recording has the
allocator's peak, its reserved bytes and the device's used memory; a second file has the allocator's history.
``--compare`` prints a recording next to the predictions for its GPU, and the peaks outside ``peak_range``; ``--card``
chooses the GPU. Held-out configurations are only for validation: nothing may be fitted to them.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import platform
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import torchsummary_plus
from benchmarks.cpu.report import percentile
from benchmarks.cuda.configs import SETS, STEPS, Configuration, configured
from benchmarks.cuda.files import DATA, latest_recording, recorded, recording_name, write
from benchmarks.cuda.libraries import installed
from benchmarks.cuda.meters import CudaMeter
from benchmarks.cuda.processes import REAL, has_gpu, in_child, run_on, warm_up, without_gpu
from benchmarks.nocuda.runtime import UNKNOWN, active_card_path, is_active
from torchsummary_plus.data.errors import SummaryError

SAVED = 8
"""The file is written after this many configurations."""
ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, ImportError)


class Runs(Protocol):
    """What is recorded: a configuration, or a single call."""

    def inputs(self, device: str) -> Any:
        """Return the model's input."""

    def run(self, model: nn.Module, x: Any) -> Iterator[Callable[[], None]]:
        """Yield the steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", help="GPUs of benchmarks/nocuda (A100,T4); by default the machine's own")
    parser.add_argument("--set", choices=SETS, default="own", help="models in plain torch, or from other libraries")
    parser.add_argument("--out", type=Path, help="the file to write; by default one in benchmarks/data")
    parser.add_argument("--only", default="", help="a regular expression that a configuration's name must contain")
    parser.add_argument("--resume", action="store_true", help="record, or predict by today's code, what is missing")
    parser.add_argument("--compare", type=Path, nargs="?", const=Path(), help="print a recording beside predictions")
    parser.add_argument("--write", action="store_true", help="with --compare: add the predictions to the recording")
    options = parser.parse_args()
    if options.compare is None:
        record_cards(options, run_on((options.card or REAL).split(","), "benchmarks.cuda.truth"))
        return
    path = options.compare
    if not path.name:
        path = latest_recording(options.card or parser.error("no --card"), options.set)
    recording = json.loads(path.read_text())
    done = {r["name"] for r in recording["records"] if options.resume and r.get("predicted", {}).get("code") == code()}
    header = {key: value for key, value in recording.items() if key != "records"}
    note = partial(write, path, header, recording["records"]) if options.write else lambda: None
    compare(recording, options.only, done, note)


def record_cards(options: argparse.Namespace, cards: list[str]) -> None:
    """Record each GPU, saving the file as it goes."""
    every = [c for c in configured(options.set) if c.family.is_installed]
    chosen = [c for c in every if re.search(options.only, c.name)]
    warm_up()
    headers = [in_child(partial(describe, options.set), card) for card in cards]
    paths = [options.out or DATA / recording_name(header) for header in headers]
    before = [recorded(path) if options.resume else {} for path in paths]
    missing = [c for c in chosen if any(c.name not in known for known in before)]
    for start in range(0, len(missing), SAVED):
        recordings = record_all(missing[start : start + SAVED], cards)
        for out, header, known, records in zip(paths, headers, before, recordings):
            known.update((record["name"], record) for record in records)
            write(out, header, [known[c.name] for c in every if c.name in known])
    print(f"written to {', '.join(map(str, paths))}")


def describe(which: str = "own") -> dict[str, Any]:
    """Return the GPU and the versions."""
    header: dict[str, Any] = {
        "device": "cuda", "set": which, "gpu": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "total_bytes": torch.cuda.get_device_properties(0).total_memory, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "runtime": "CUDA",
    }  # fmt: skip
    if is_active():
        header.update(runtime="no-op", card=active_card_path().stem, unknown=UNKNOWN)
    if which == "libraries":
        header["libraries"] = installed()
    return {**header, "torch": torch.__version__, "python": platform.python_version(), "steps": STEPS}


def record_all(chosen: Iterable[Configuration], cards: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return a record of each configuration for each GPU, in order; the record of a failure has the error."""
    records: list[list[dict[str, Any]]] = [[] for _ in cards]
    for configuration in chosen:
        model = None if has_gpu() else built(configuration)
        for card, into in zip(cards, records):
            outcome = in_child(partial(attempt, configuration, model), card)
            record = {"name": configuration.name, "held_out": configuration.held_out, **outcome}
            peak, error = record.get("peak_bytes", 0) / 2**20, record.get("error", "")
            print(f"{record['name']:44} {card:8} {peak:10,.1f} MiB {error}", flush=True)
            into.append(record)
    return records


def built(configuration: Configuration) -> nn.Module | str:
    """Return the model on ``meta``, or why it cannot be built."""
    try:
        with without_gpu():
            return configuration.build()
    except ERRORS as error:
        return described(error)


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def attempt(configuration: Configuration, model: nn.Module | str | None) -> dict[str, Any]:
    """Return the record of a configuration, or its error; a real GPU's process builds the model, if None, itself."""
    if model is None:
        model = built(configuration)
    if isinstance(model, str):
        return {"error": model}
    try:
        return record(configuration, model, CudaMeter())
    except ERRORS as error:
        return {"error": described(error)}
    finally:
        gc.collect()


def record(runs: Runs, model: nn.Module, meter: CudaMeter) -> dict[str, Any]:
    """Return the peak memory of the steps of a model on ``meta``, once it is on the GPU."""
    meter.begin()
    model = placed(model)
    x = runs.inputs("cuda")
    meter.hold()
    for step in runs.run(model, x):
        meter.run(step)
    return meter.end()


def placed(model: nn.Module) -> nn.Module:
    """Move a model on ``meta`` to the GPU as ``model.to`` does, filled with small numbers; tied tensors stay tied."""
    parameters: dict[int, nn.Parameter] = {}

    def full(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, 0.01, device="cuda", requires_grad=False)

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


@cache
def code() -> str:
    """Return the checksum of the code that predicts."""
    package = Path(torchsummary_plus.__file__).parent
    rooms = ("data", "live", "ops", "trace", "step", "memory")
    sources = sorted(path for room in rooms for path in (package / room).rglob("*") if path.suffix in (".py", ".json"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:8]


def compare(
    recording: dict[str, Any], only: str = "", done: Container[str] = (), note: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Print each configuration's figures next to the predictions; return the relative errors of both kinds of bytes.

    Each record gets its prediction with the checksum of the code, or why there is none. The file is written regularly.
    Configurations in ``done`` are skipped.
    """
    known = {c.name: c for c in configured(recording.get("set", "own")) if c.family.is_installed}
    errors: dict[str, list[float]] = {"peak_bytes": [], "reserved_bytes": []}
    outside: list[str] = []
    for truth in recording["records"]:
        name = truth["name"]
        if "error" in truth or name not in known or name in done or not re.search(only, name):
            continue
        try:
            estimate = known[truth["name"]].predict(recording["gpu"])
        except (SummaryError, *ERRORS) as error:
            print(f"{truth['name']:44} not predicted: {described(error)}", flush=True)
            truth["predicted"] = {"error": described(error), "code": code()}
            continue
        truth["predicted"] = {"code": code()}
        low, high = estimate.peak_range
        if not low <= truth["peak_bytes"] <= high:
            outside.append(f"{truth['name']}: {truth['peak_bytes']:,}, not {low:,} to {high:,}")
        for key, found in errors.items():
            predicted = truth["predicted"][key] = getattr(estimate, key)
            found.append(predicted / truth[key] - 1)
            half = "held out" if truth["held_out"] else ""
            figures = f"{truth[key]:14,} {predicted:14,} {found[-1]:+8.2%} {key.removesuffix('_bytes')}"
            print(f"{truth['name']:44} {half:8} {figures}", flush=True)
        if len(errors["peak_bytes"]) % SAVED == 0:
            note()
    note()
    for key, values in errors.items():
        if sizes := [abs(value) for value in values]:
            median, worst = percentile(sizes, 0.5), percentile(sizes, 0.95)
            print(f"{key}: median {median:.3%}, 95th percentile {worst:.3%} of {len(values)}")
    print(f"peak_range: {len(outside)} of {len(errors['peak_bytes'])} outside", *outside, sep="\n")
    return errors


if __name__ == "__main__":
    main()
