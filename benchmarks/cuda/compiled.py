"""Measure compiled steps on the no-op CUDA runtime.

Run ``python -m benchmarks.nocuda --card A100 -m benchmarks.cuda.compiled``. The models are those of
``benchmarks.cpu.compiled``, compiled by real Triton. Peaks are the allocator's, after a first step that compiles.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu.compiled import CASES, CompiledCase
from benchmarks.cpu.truth import DATA, MODES, STEPS, Case, loss_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression to search for in the names of cases")
    parser.add_argument("--data", type=Path, default=DATA / "gpu_compiled_noop_a100_torch_2.13.0.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[str, Any] = json.loads(options.data.read_text()) if options.data.exists() else {}
    for case in CASES:
        if re.search(options.only, case.name):
            rows.update(measured(case))
            lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
            options.data.write_text(f"{{\n{lines}\n}}\n")


def measured(case: CompiledCase) -> dict[str, dict[str, int]]:
    """Return the allocated and reserved peak of both optimizers' steps, in bytes."""
    model, inputs = case.built()
    model, inputs = model.cuda(), tuple(tensor.cuda() for tensor in inputs)
    compiled, rows = torch.compile(model), {}
    steps(next(case.cases())[1], compiled, inputs)
    for name, one in case.cases():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        steps(one, compiled, inputs)
        rows[name] = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        print(name, rows[name], flush=True)
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


if __name__ == "__main__":
    main()
