"""Compare predicted with measured memory of compiled steps on CUDA.

``python -m benchmarks.cuda.compiled --card A100``, with a CUDA build of torch, measures the models of
``benchmarks.cpu.compiled`` on the no-op runtime: the allocator's peaks, after a first step that compiles. Kernels of
Triton do nothing there, so they are not compiled unless ``--triton`` asks for it. ``--predict``, in any environment,
predicts the peaks. Each case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import time
import warnings
from typing import Any

import torch

from benchmarks.cpu.compiled import CASES, CompiledCase, update
from benchmarks.cpu.truth import DATA, MODES, STEPS, Case, loss_of
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.memory_records import NOT_COMPILED

GPUS = {"A100": "A100 80GB"}
"""Names of cards that the package calls otherwise."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", default="A100", help="a GPU of benchmarks/nocuda")
    parser.add_argument("--only", default="", help="a regular expression to search for in the names of cases")
    parser.add_argument("--predict", action="store_true", help="predict instead of measuring")
    parser.add_argument("--missing", action="store_true", help="run only what the data file lacks")
    parser.add_argument("--triton", action="store_true", help="compile Triton's kernels, which takes minutes a model")
    parser.add_argument("--run", nargs=2, metavar=("STEP", "CASE"), help="run one step here and print its result")
    options = parser.parse_args()
    if options.run:
        warnings.simplefilter("ignore")
        step, name = options.run
        case = next(case for case in CASES if case.name == name)
        print(json.dumps(measured(case, options.triton) if step == "measure" else predicted(case, options.card)))
        return
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # A process without the no-op runtime finds no GPU.
    path = DATA / f"gpu_compiled_noop_{options.card.lower()}_torch_2.13.0.json"
    rows: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    module = ["-m", "benchmarks.cuda.compiled", "--card", options.card, *(["--triton"] if options.triton else [])]
    runtime = [] if options.predict else ["-m", "benchmarks.nocuda", "--card", options.card]
    for case in CASES:
        if re.search(options.only, case.name):
            update(rows, case, "predict" if options.predict else "measure", options.missing, *runtime, *module)
            lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
            path.write_text(f"{{\n{lines}\n}}\n")
    print(report(rows))


def measured(case: CompiledCase, with_triton: bool) -> dict[str, dict[str, Any]]:
    """Return the allocated and reserved peak of both optimizers' steps, in bytes."""
    from torch._inductor.async_compile import AsyncCompile

    from torchsummary_plus.compiled.kernels import Nothing  # Not above: a prediction imports the compiler itself.

    if not with_triton:
        AsyncCompile.triton = lambda *_, **__: Nothing()  # type: ignore[method-assign]
    model, inputs = case.built()
    model, inputs = model.cuda(), tuple(tensor.cuda() for tensor in inputs)
    compiled, rows, began = torch.compile(model), {}, time.perf_counter()
    steps(next(case.cases())[1], compiled, inputs)
    seconds = round(time.perf_counter() - began, 1)
    for name, one in case.cases():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        steps(one, compiled, inputs)
        peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        rows[name] = {**peaks, "measure_seconds": seconds}
    return rows


def steps(case: Case, model: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """Run the real steps of a case."""
    maker, dtype = MODES[case.mode], case.subject.autocast
    assert maker is not None
    optimizer = maker(list(model.parameters()))
    for _ in range(STEPS):
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            loss = loss_of(model(*inputs))
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()


def predicted(case: CompiledCase, card: str) -> dict[str, dict[str, Any]]:
    """Return the predicted peaks with their ranges, and how long they took."""
    found: dict[str, dict[str, Any]] = {}
    model, inputs = case.built()
    for name, one in case.cases():
        began = time.perf_counter()
        estimate = estimate_memory(
            model,
            input_data=inputs[0] if len(inputs) == 1 else inputs,
            optimizer=MODES[one.mode],
            autocast=one.subject.autocast,
            loss=loss_of,
            gpu=GPUS.get(card, card),
            compiled=True,
        )
        found[name] = {
            "predicted": estimate.peak_bytes,
            "range": list(estimate.peak_range),
            "predicted_reserved": estimate.reserved_bytes,
            "reserved_range": list(estimate.reserved_range),
            "predict_seconds": round(time.perf_counter() - began, 1),
            "refused": [line for line in estimate.assumptions if line.startswith(NOT_COMPILED)],
        }
    return found


def report(rows: dict[str, Any]) -> str:
    """Return the errors of the cases that have both figures, and how many are exact and inside their ranges."""
    both = {name: row for name, row in rows.items() if "predicted" in row and "allocated" in row}
    lines = [
        f"{name:32} allocated {row['allocated']:>12,} {row['predicted'] / row['allocated'] - 1:+8.3%}  "
        f"reserved {row['reserved']:>12,} {row['predicted_reserved'] / row['reserved'] - 1:+8.3%}  "
        f"{row['predict_seconds']:5.1f} s of {row['measure_seconds']:5.1f} s"
        for name, row in sorted(both.items())
    ]
    exact = sum(row["predicted"] == row["allocated"] for row in both.values())
    inside = sum(row["range"][0] <= row["allocated"] <= row["range"][1] for row in both.values())
    held = sum(row["reserved_range"][0] <= row["reserved"] <= row["reserved_range"][1] for row in both.values())
    total = len(both)
    return "\n".join([*lines, f"of {total}: {exact} exact, {inside} inside the range, reserved {held} inside"])


if __name__ == "__main__":
    main()
