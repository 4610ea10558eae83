"""Record single operators on the no-op runtime: ``python -m benchmarks.cuda.calls --card A100``.

Random calls run once, forward and backward, each in its own process on the no-op runtime (benchmarks/nocuda), which
records the requested sizes in order. ``--compare`` prints the wrong predictions, and the share of exact ones.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cuda.calls_kinds import DTYPES, KINDS
from benchmarks.cuda.files import DATA, versions, write
from benchmarks.cuda.processes import in_child, run_on, warm_up
from benchmarks.cuda.sequence import SequenceMeter, predicted_changes
from benchmarks.cuda.truth import describe, record
from benchmarks.nocuda.cards import card_path
from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.scratch.registry import SCRATCH
from torchsummary_plus.step.training import default_loss
from torchsummary_plus.step.workspace import OTHER_FORMULAS

BOUNDED = {name for (_, name), rule in SCRATCH.items() if rule.since} | OTHER_FORMULAS
"""Operators that have only a bound on CUDA, and gradients that have only a range."""


@dataclass(frozen=True)
class Call:
    """An operator, by the name of its builder, and the builder's arguments."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind}({', '.join(f'{key}={value}' for key, value in self.settings.items())})"

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.settings.get("dtype", "fp32")]

    def build(self) -> nn.Module:
        """Return the call as a module on ``meta``, whose parameters are its arguments."""
        with torch.device("meta"):
            model = KINDS[self.kind][1](**{k: v for k, v in self.settings.items() if k != "dtype"})
        return model.to(self.dtype)

    def inputs(self, device: str) -> Tensor:
        return torch.zeros(1, dtype=self.dtype, device=device)

    def run(self, model: nn.Module, x: Tensor) -> Iterator[Callable[[], None]]:
        """Yield one step: forward and backward."""

        def step() -> None:
            default_loss(model(x)).backward()
            model.zero_grad()

        yield step


def calls() -> Iterator[Call]:
    """Yield all calls, which are the same in every process."""
    for kind, (draw, _, count) in KINDS.items():
        random_numbers = random.Random(kind)
        seen = set()
        for _ in range(count):
            call = Call(kind, draw(random_numbers))
            if call.name not in seen:
                seen.add(call.name)
                yield call


def run_lengths(changes: Sequence[int]) -> list[list[int]]:
    """Return the changes in order, with consecutive frees sorted, because their order does not matter."""
    runs: list[list[int]] = []
    for change in changes:
        if runs and (runs[-1][-1] < 0) == (change < 0):
            runs[-1].append(change)
        else:
            runs.append([change])
    return [sorted(run) if run[0] < 0 else run for run in runs]


def sequence(changes: Sequence[int]) -> list[int]:
    """Return the allocations in order, as they are recorded."""
    return [change for run in run_lengths(changes) for change in run]


def recording_path(header: dict[str, Any]) -> Path:
    return DATA / f"gpu_calls_{versions(header).partition('_cudnn_')[0]}.json"


def recorded(call: Call) -> dict[str, Any]:
    meter = SequenceMeter()
    try:
        figures = record(call, call.build(), meter)
    except (RuntimeError, ValueError, AssertionError) as error:
        return {"name": call.name, "error": " ".join(str(error).split())[:200]}
    changes = sequence([change.nbytes for change in meter.changes])
    return {"name": call.name, "peak_bytes": figures["peak_bytes"], "reserved_bytes": figures["reserved_bytes"],
            "changes": changes}  # fmt: skip


def predicted(call: Call, gpu: str) -> dict[str, Any]:
    estimate = estimate_memory(
        call.build(), input_data=call.inputs("meta"), device="cuda", gpu=gpu, steps=1, progress=False
    )
    changes = sequence([change.nbytes for change in predicted_changes(estimate.log)])
    return {"peak_bytes": estimate.peak_bytes, "reserved_bytes": estimate.reserved_bytes, "changes": changes,
            "range": estimate.peak_range, "unknown": dict(estimate.unknown),
            "assumptions": estimate.assumptions}  # fmt: skip


def compare(recording: dict[str, Any], kind: str = "", shown: int = 0) -> dict[str, list[float]]:
    """Return the relative errors of the calls' peaks by kind, and print the wrong ones, up to a limit per kind.

    Calls of operators with only a bound are wrong where the truth is outside of the range.
    """
    known = {call.name: call for call in calls()}
    errors: dict[str, list[float]] = {}
    wrong: Counter[str] = Counter()
    for truth in recording["records"]:
        call = known.get(truth["name"])
        if call is None or "error" in truth or kind not in call.kind:
            continue
        prediction = predicted(call, recording["gpu"])
        is_bounded = BOUNDED & prediction["unknown"].keys()
        low, high = prediction["range"] if is_bounded else (prediction["peak_bytes"], prediction["peak_bytes"])
        is_right = low <= truth["peak_bytes"] <= high
        errors.setdefault(call.kind, []).append(0 if is_right else prediction["peak_bytes"] / truth["peak_bytes"] - 1)
        if not is_right:
            wrong[call.kind] += 1
            if wrong[call.kind] <= shown:
                print(f"{call.name}: {truth['peak_bytes']:,}, predicted {prediction['peak_bytes']:,}")
                print("  truth    ", *(f"{change:+,}" for change in truth["changes"][:40]))
                print("  predicted", *(f"{change:+,}" for change in prediction["changes"][:40]))
                print(*(f"  {line}\n" for line in prediction["assumptions"] if "no fake" in line), end="")
    for name, values in errors.items():
        print(f"{name:12} {len(values) - wrong[name]} of {len(values)} peaks exact or within bounds")
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", required=True, help="a GPU of benchmarks/nocuda, or real: the GPU of this machine")
    parser.add_argument("--out", type=Path, help="the file to write; by default one in benchmarks/data")
    parser.add_argument("--kind", default="", help="only calls of this kind")
    parser.add_argument("--compare", action="store_true", help="print the recording next to the predictions")
    parser.add_argument("--shown", type=int, default=5, help="number of wrong calls of each kind to print")
    options = parser.parse_args()
    if options.compare:
        paths = sorted(DATA.glob(f"gpu_calls_noop_{card_path(options.card).stem}_*.json"))
        compare(json.loads(paths[-1].read_text()), options.kind, options.shown)
        return
    (card,) = run_on([options.card], "benchmarks.cuda.calls")
    warm_up()
    header = in_child(describe, card)
    path = options.out or recording_path(header)
    earlier = json.loads(path.read_text())["records"] if options.kind and path.exists() else []
    records = [record for record in earlier if not record["name"].startswith(f"{options.kind}(")]
    for call in calls():
        if options.kind in ("", call.kind):
            records.append(in_child(partial(recorded, call), card))
            write(path, header, records)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
