"""The table of predicted and recorded CUDA peaks, which ``python -m docs.measured`` writes.

``python -m benchmarks.cuda.truth --card A100 --compare --write`` adds the predictions to a recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.cpu.report import percentile

HEAD = ("GPU", "steps", "exact", "within 1 %", "median", "95 %", "reserved: within 2 %", "within 5 %", "95 %")
SETS = {"own": "Models in plain torch", "libraries": "Models of other libraries"}
CARDS = ("A100", "T4")
"""The GPUs whose recordings ``benchmarks.freeze`` predicts again."""
FAILED = 1.0
"""The error of a configuration without a prediction."""


def cuda_table(folder: Path) -> str:
    """Return a Markdown table for each set of models, with a row for each GPU and one for its held-out part."""
    recordings = [json.loads(path.read_text()) for path in sorted(folder.glob("gpu_truth_*.json"))]
    recordings.sort(key=lambda recording: recording["runtime"] != "CUDA")
    return "\n\n".join(_tables(recordings)) or "Nothing has been compared yet."


def cpu_build_table(folder: Path) -> str:
    """Return a Markdown table of the peaks that a CPU build of torch predicts (``benchmarks.freeze --part cuda``)."""
    errors = cpu_build_errors(folder)
    rows = {**errors, "all": [error for every in errors.values() for error in every]}
    limits = (0.0, 0.01, 0.05)
    lines = [(name, str(len(every)), *(share(every, within) for within in limits)) for name, every in rows.items()]
    head = ("recorded steps", "count", "exact", "within 1 %", "within 5 %")
    return tabulate(lines, head, tablefmt="github", colalign=("left", *("right",) * (len(head) - 1)))


def cpu_build_errors(folder: Path) -> dict[str, list[float]]:
    """Return the relative errors of these peaks, by GPU and set of models."""
    predicted = json.loads((folder / "frozen_cuda.json").read_text())
    errors: dict[str, list[float]] = {}
    for card in CARDS:
        for path in sorted(folder.glob(f"gpu_truth_noop_{card.lower()}_*.json"), reverse=True):
            recording = json.loads(path.read_text())
            peaks = {f"{card} {record['name']}": record.get("peak_bytes") for record in recording["records"]}
            name = f"{card}: {SETS[recording.get('set', 'own')]}"
            errors[name] = [abs(predicted[key][0] - peak) / peak for key, peak in peaks.items() if key in predicted]
    return errors


def _tables(recordings: list[dict[str, Any]]) -> Iterator[str]:
    for which, title in SETS.items():
        lines = [line for recording in recordings if recording.get("set", "own") == which for line in _lines(recording)]
        if lines:
            table = tabulate(lines, HEAD, tablefmt="github", colalign=("left", *("right",) * (len(HEAD) - 1)))
            yield f"{title}:\n\n{table}"


def _lines(recording: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    compared = [record for record in recording["records"] if "predicted" in record]
    held_out = [record for record in compared if record["held_out"]]
    name = recording["gpu"].removeprefix("NVIDIA ").removeprefix("GeForce ")
    if recording["runtime"] == "CUDA":
        name = f"**real** {name}"
    if compared:
        yield line(name, compared)
        yield line(f"{name}, held out", held_out)


def line(name: str, records: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return a row of the table."""
    peaks, reserved = ([abs(error(record, key)) for record in records] for key in ("peak_bytes", "reserved_bytes"))
    return (
        name,
        str(len(records)),
        share(peaks, 0.0),
        share(peaks, 0.01),
        *(f"{100 * percentile(peaks, part):.2f} %" for part in (0.5, 0.95)),
        share(reserved, 0.02),
        share(reserved, 0.05),
        f"{100 * percentile(reserved, 0.95):.2f} %",
    )


def error(record: dict[str, Any], key: str) -> float:
    """Return a prediction's relative error.

    >>> error({"peak_bytes": 100, "predicted": {"peak_bytes": 75}}, "peak_bytes")
    -0.25
    """
    predicted: int | None = record["predicted"].get(key)
    measured: int = record[key]
    return FAILED if predicted is None else (predicted - measured) / measured


def share(errors: list[float], within: float) -> str:
    """Return the share of errors up to a limit.

    >>> share([0.0, 0.02, 0.005], 0.01)
    '66.7 %'
    """
    return f"{100 * sum(error <= within for error in errors) / len(errors):.1f} %"
