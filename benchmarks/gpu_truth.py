"""The truth about a GPU's memory, recorded: ``python -m benchmarks.gpu_truth`` on a CUDA machine, within 9 minutes.

``--card H100`` records on any machine what torch's CUDA build, its allocator and cuDNN's heuristics say for a card
(benchmarks/nocuda): kernels do nothing there, and the recording says so and lists what cannot be known that way.

Each configuration starts from an empty cache and runs two training or inference steps; written down are the
allocator's peaks, what it reserved, what the device gave away in all, and of some the allocator's whole history.
``--device cpu`` runs the same in small, with torch's profiler as the truth. ``--compare`` prints a recording beside
the predictions for its GPU, with ``--card`` alone that card's. Configurations marked as held out are for checking
alone: nothing may be fitted to them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_truth_configs import OPTIMIZERS, STEPS, Configuration, configurations, predict
from benchmarks.gpu_truth_meters import CpuMeter, CudaMeter, Meter
from benchmarks.nocuda.cards import card_path
from benchmarks.nocuda.runtime import UNKNOWN, active_card_path, is_active
from torchsummary_plus.errors import SummaryError
from torchsummary_plus.tracing.steps import default_loss

DATA = Path(__file__).parent / "data"
SECONDS = 500
"""After so long no further configuration is begun: a command may take 540."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--card", help="a card of benchmarks/nocuda to record without a GPU, or to compare")
    parser.add_argument("--out", type=Path, help="the file to write; by default one in benchmarks/data")
    parser.add_argument("--only", default="", help="a regular expression that a configuration's name must contain")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="begin no further configuration after so long")
    parser.add_argument("--histories", action="store_true", help="keep the allocator's history of every configuration")
    parser.add_argument(
        "--compare", type=Path, nargs="?", const=Path(), help="print a recording beside the predictions, record nothing"
    )
    options = parser.parse_args()
    if options.compare is not None:
        path = options.compare if options.compare.name else latest_recording(options.card or parser.error("no --card"))
        compare(json.loads(path.read_text()), options.only)
        return
    if options.card is not None and not is_active():
        judge = ["-m", "benchmarks.nocuda", "--card", options.card, "-m", "benchmarks.gpu_truth"]
        os.execv(sys.executable, [sys.executable, *judge, *sys.argv[1:]])
    header = describe(options.device)
    out = options.out or DATA / recording_name(header)
    chosen = [c for c in configurations(options.device == "cpu") if re.search(options.only, c.name)]
    if options.histories:
        chosen = [replace(c, has_history=True) for c in chosen]
    write(out, header, record_all(chosen, options.device, options.seconds))
    print(f"written to {out}")


def recording_name(header: dict[str, Any]) -> str:
    """What a recording's file is called: by its GPU; of the no-op runtime by card, torch and cuDNN.

    >>> recording_name({"gpu": "NVIDIA L4", "runtime": "CUDA"})
    'gpu_truth_nvidia_l4.json'
    >>> recording_name({"runtime": "no-op", "card": "l4", "torch": "2.13.0+cu130", "cudnn": 92000})
    'gpu_truth_noop_l4_torch_2.13.0_cudnn_9.20.0.json'
    """
    if header.get("runtime") != "no-op":
        return f"gpu_truth_{re.sub('[^a-z0-9]+', '_', header['gpu'].lower())}.json"
    cudnn = header["cudnn"]
    versions = f"torch_{header['torch'].split('+')[0]}_cudnn_{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
    return f"gpu_truth_noop_{header['card']}_{versions}.json"


def latest_recording(card: str) -> Path:
    """The last recording that the no-op runtime made of a card."""
    name = card_path(card).stem
    found = sorted(DATA.glob(f"gpu_truth_noop_{name}_*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit(f"{card} has no recording: make one with --card {card}")
    return found[-1]


def describe(device: str) -> dict[str, Any]:
    """The machine and its versions."""
    header: dict[str, Any] = {"device": device, "gpu": platform.processor() or platform.machine()}
    if device == "cuda":
        header["gpu"] = torch.cuda.get_device_name()
        header["capability"] = torch.cuda.get_device_capability()
        header["total_bytes"] = torch.cuda.get_device_properties(0).total_memory
        header["cuda"] = torch.version.cuda
        header["cudnn"] = torch.backends.cudnn.version()
        header["runtime"] = "CUDA"
        if is_active():
            header.update(runtime="no-op", card=active_card_path().stem, unknown=UNKNOWN)
    return {**header, "torch": torch.__version__, "python": platform.python_version(), "steps": STEPS}


def record_all(chosen: Iterable[Configuration], device: str, seconds: int = SECONDS) -> list[dict[str, Any]]:
    """A record of each configuration in its order; one that fails or comes too late says so."""
    began = time.monotonic()
    records = []
    for configuration in chosen:
        late = time.monotonic() - began > seconds
        record = {**identity(configuration), **({"error": "not reached"} if late else attempt(configuration, device))}
        print(
            f"{record['name']:44} {record.get('peak_bytes', 0) / 2**20:10,.1f} MiB {record.get('error', '')}",
            flush=True,
        )
        records.append(record)
    return records


def identity(configuration: Configuration) -> dict[str, Any]:
    return {"name": configuration.name, "held_out": configuration.held_out}


def attempt(configuration: Configuration, device: str) -> dict[str, Any]:
    try:
        return record(configuration, device)
    except (RuntimeError, ValueError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    finally:
        gc.collect()


def record(configuration: Configuration, device: str, meter: Meter | None = None, steps: int = STEPS) -> dict[str, Any]:
    """What two steps of a configuration hold at most."""
    meter = meter or (CudaMeter(configuration.has_history) if device == "cuda" else CpuMeter())
    meter.begin()
    model = placed(configuration.build(), device)
    x = configuration.inputs(device)
    meter.hold([*model.parameters(), *model.buffers(), x])
    made = OPTIMIZERS[configuration.optimizer]
    optimizer = made(list(model.parameters())) if made is not None and configuration.mode == "train" else None
    for _ in range(steps):
        run_step(configuration, model, x, optimizer, meter)
    return meter.end()


def placed(model: nn.Module, device: str) -> nn.Module:
    """A model on ``meta`` put on a device, full of small numbers; what is tied stays tied."""
    made: dict[int, nn.Parameter] = {}

    def full(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, 0.01, device=device, requires_grad=False)

    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(full(parameter), parameter.requires_grad)
            setattr(module, name, made[id(parameter)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = full(buffer)
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()
    return model


def run_step(configuration: Configuration, model: nn.Module, x: torch.Tensor, optimizer: Any, meter: Meter) -> None:
    """A step phase by phase; the output is freed once the loss is known, gradients by ``zero_grad()``."""
    kept: list[torch.Tensor] = []

    def forward() -> None:
        dtype = configuration.autocast
        with torch.autocast(meter.device, dtype or torch.bfloat16, enabled=dtype is not None):
            kept.append(default_loss(model(x)))

    def infer() -> None:
        with torch.no_grad():
            model(x)

    if configuration.mode == "eval":
        meter.phase("forward", infer)
        return
    meter.phase("forward", forward)
    meter.phase("backward", lambda: kept.pop().backward())
    if optimizer is not None:
        meter.phase("optimizer", optimizer.step)
    meter.phase("forward", model.zero_grad)


def write(out: Path, header: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """The recording, a line for each configuration."""
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    head = json.dumps(header)[1:-1]
    out.write_text(f'{{{head},\n"records":[\n{lines}\n]}}\n')


def compare(recording: dict[str, Any], only: str = "") -> dict[str, list[float]]:
    """Print each configuration's figures beside the predicted ones; the relative errors of peaks and reserved bytes."""
    known = {c.name: c for c in configurations(recording["device"] == "cpu")}
    gpu = recording["gpu"] if recording["device"] == "cuda" else None
    errors: dict[str, list[float]] = {"peak_bytes": [], "reserved_bytes": []}
    print(f"{'configuration':44} {'':8} {'measured':>14} {'predicted':>14} {'error':>8}")
    for found in recording["records"]:
        if "error" in found or found["name"] not in known or not re.search(only, found["name"]):
            continue
        try:
            estimate = predict(known[found["name"]], recording["device"], gpu)
        except (SummaryError, RuntimeError, ValueError, TypeError) as error:
            print(f"{found['name']:44} not predicted: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
            continue
        for key in errors:
            if key in found:
                predicted = getattr(estimate, key)
                errors[key].append(predicted / found[key] - 1)
                held = "held out" if found["held_out"] else ""
                print(
                    f"{found['name']:44} {held:8} {found[key]:14,} {predicted:14,} {errors[key][-1]:+8.2%}"
                    f" {key.removesuffix('_bytes')}",
                    flush=True,
                )
    for key, values in errors.items():
        if values:
            median, worst = percentile(values, 50), percentile(values, 95)
            print(f"{key}: median {median:.3%}, 95th percentile {worst:.3%} of {len(values)}")
    return errors


def percentile(errors: list[float], rank: int) -> float:
    """Of the errors' magnitudes.

    >>> percentile([0.01, -0.02, 0.03], 50)
    0.02
    """
    sizes = sorted(map(abs, errors))
    return statistics.median(sizes) if rank == 50 else sizes[min(len(sizes) - 1, rank * len(sizes) // 100)]


if __name__ == "__main__":
    main()
