"""Compare predicted with measured memory on the CPU: ``python -m benchmarks.cpu.truth``.

Every model runs two real steps of training and of inference under torch's profiler, which records each allocation and
free. The peaks of the first and the second step are compared with the predicted ones. Results go to a data file per
instruction set, with the library versions, so a run can be split: ``--part 2/5``.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from benchmarks.cpu.events import MARK, difference, measured_levels, predicted_levels
from benchmarks.cpu.models import SUBJECTS, Subject
from benchmarks.cpu.report import report
from tests.truth.memory_truth import OptimizerMaker, cpu_changes, storage_bytes
from torchsummary_plus.api.memory import estimate_memory

DATA = Path(__file__).parents[1] / "data"
BATCHES = (2, 5)
STEPS = 2
SEED = 0

MODES: dict[str, OptimizerMaker | None] = {
    "eval": None,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.001),
    "adamw_foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.001, foreach=True),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.001, fused=True),
}
"""How a model runs: without gradients, or trained by an optimizer."""


@dataclass(frozen=True)
class Case:
    """A model, its way of running, and its batch size."""

    subject: Subject
    mode: str
    batch: int

    @property
    def name(self) -> str:
        return f"{self.subject.name}/{self.mode}/{self.batch}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression to search for in cases (model/mode/batch)")
    parser.add_argument("--part", default="1/1", help="the i-th of n parts of the models: i/n")
    parser.add_argument("--report", action="store_true", help="only print the report on the data file")
    parser.add_argument("--data", type=Path, help="the data file; by default benchmarks/data/cpu_truth_<isa>.json")
    options = parser.parse_args()
    path: Path = options.data or DATA / f"cpu_truth_{isa().lower()}.json"
    if options.report:
        print(report(json.loads(path.read_text())))
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    part, parts = map(int, options.part.split("/"))
    cases = [
        Case(subject, mode, batch)
        for number, subject in enumerate(SUBJECTS)
        for mode in MODES
        for batch in BATCHES
        if number % parts == part - 1
    ]
    chosen = [case for case in cases if re.search(options.only, case.name)]
    data = {"machine": machine(), "cases": load(path)}
    for case in chosen:
        data["cases"][case.name] = measured(case)
        print(line(case.name, data["cases"][case.name]), file=sys.stderr, flush=True)
    path.write_text(as_text(data))
    print(report(data))


def isa() -> str:
    """Return the instruction set that torch's kernels use."""
    return torch.backends.cpu.get_cpu_capability()


def machine() -> dict[str, Any]:
    """Return the properties of the machine and the libraries on which the results depend."""
    return {
        "isa": isa(),
        "threads": 1,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "onednn": re.search(r"MKL-DNN v(\S+)", torch.__config__.show())[1],  # type: ignore[index]
    }


def load(path: Path, made_on: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the cases of a data file, or nothing if it comes from another kind of machine than this one."""
    if not path.exists():
        return {}
    recording = json.loads(path.read_text())
    cases: dict[str, Any] = recording["cases"] if recording["machine"] == (made_on or machine()) else {}
    return cases


def as_text(data: dict[str, Any]) -> str:
    """Return the data as JSON with a line for each case."""
    cases = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in sorted(data["cases"].items()))
    return f'{{\n "machine": {json.dumps(data["machine"])},\n "cases": {{\n{cases}\n }}\n}}\n'


def loss_of(output: Any) -> Tensor:
    """Return the loss of an output, as ``estimate_memory`` computes it by default."""
    loss: Tensor = output.sum()
    return loss


def steps_of(case: Case, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Return the real steps of a case, each marked with its number."""
    maker, autocast, device = MODES[case.mode], case.subject.autocast, inputs[0].device.type
    optimizer = None if maker is None else maker([p for p in model.parameters() if p.requires_grad])
    for number in range(STEPS):
        with record_function(f"{MARK}{number}"):
            if optimizer is None:
                with torch.no_grad(), torch.autocast(device, autocast, enabled=autocast is not None):
                    model(*inputs)
                continue
            with torch.autocast(device, autocast, enabled=autocast is not None):
                loss = loss_of(model(*inputs))
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()


def built(case: Case) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(SEED)
    model = case.subject.build()
    return model.train(case.mode != "eval"), case.subject.example(case.batch)


def predict(case: Case, model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """Return the estimate of a case."""
    return estimate_memory(
        model, input_data=inputs[0] if len(inputs) == 1 else inputs, mode="eval" if case.mode == "eval" else "train",
        optimizer=MODES[case.mode], autocast=case.subject.autocast, steps=STEPS,
    )  # fmt: skip


def measured(case: Case) -> dict[str, Any]:
    """Return the measured and predicted peaks of both steps, and the bytes by operator that explain a difference."""
    began = time.process_time()
    try:
        model, inputs = built(case)
        log = predict(case, model, inputs).log
        static = storage_bytes([*model.parameters(), *model.buffers(), *inputs])
        real = measured_levels(cpu_changes(lambda: steps_of(case, model, inputs)), STEPS)
        fake = predicted_levels(log, STEPS)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    record: dict[str, Any] = {
        "family": case.subject.family, "measured": [static + level.nbytes for level in real],
        "predicted": [static + level.nbytes for level in fake], "seconds": round(time.process_time() - began, 1),
    }  # fmt: skip
    parts = [difference(a, b) if a.nbytes != b.nbytes else {} for a, b in zip(real, fake)]
    if any(parts):
        record["difference"] = parts
    return record


def line(name: str, case: dict[str, Any]) -> str:
    """Return the line that is printed for a case."""
    if "error" in case:
        return f"{name:44} {case['error']}"
    errors = [100 * (p - m) / m for p, m in zip(case["predicted"], case["measured"])]
    return f"{name:44} {case['measured'][-1]:>12,} " + " ".join(f"{error:+8.3f} %" for error in errors)


if __name__ == "__main__":
    main()
