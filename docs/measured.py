"""Write the tables of predicted and measured peaks to how_right.md, from recordings: ``python -m docs.measured``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.cpu.report import Row, percentile, rows
from docs.generated import with_part
from docs.measured_cuda import cpu_build_table, cuda_table

PAGE = Path(__file__).parent / "how_right.md"
DATA = Path(__file__).parents[1] / "benchmarks" / "data"
HEAD = ("family", "models", "steps", "exact", "median", "90 %", "99 %", "worst")


def measured_table(folder: Path) -> str:
    """Return a Markdown table of errors for each CPU recording, or a sentence if there are no recordings."""
    texts = [recording_text(json.loads(path.read_text())) for path in sorted(folder.glob("cpu_truth_*.json"))]
    return "\n\n".join(texts) or "This version comes without recordings."


def with_measurements(page: str) -> str:
    """Return a page with the tables of the recordings between their markers."""
    parts = {
        "measured": measured_table(DATA),
        "measured on CUDA": cuda_table(DATA),
        "measured with a CPU build": cpu_build_table(DATA),
    }
    for name, text in parts.items():
        page = with_part(page, name, text)
    return page


def recording_text(data: dict[str, Any]) -> str:
    """Return the machine of a recording, and a table with a row for each family of models."""
    machine = data["machine"]
    lines = [line(family, members) for family, members in families(data)]
    return (
        f"{machine['isa']}, torch {machine['torch']}, oneDNN {machine['onednn']}, threads: {machine['threads']}\n\n"
        + tabulate(lines, HEAD, tablefmt="github", colalign=("left", *("right",) * (len(HEAD) - 1)))
    )


def families(data: dict[str, Any]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the steps of each family of models, then all steps."""
    every = list(rows(data))
    members: dict[str, list[Row]] = defaultdict(list)
    for row in every:
        members[row.family].append(row)
    yield from members.items()
    yield "all", every


def line(family: str, members: list[Row]) -> tuple[str, ...]:
    """Return a row of the table."""
    sizes = [abs(row.error) for row in members]
    worst = max(members, key=lambda row: abs(row.error)).error
    exact = sum(row.measured == row.predicted for row in members) / len(members)
    models = len({row.name.partition("/")[0] for row in members})
    shares = (f"{100 * percentile(sizes, part):.3f} %" for part in (0.5, 0.9, 0.99))
    return family, str(models), str(len(members)), f"{100 * exact:.1f} %", *shares, f"{100 * worst:+.2f} %"


if __name__ == "__main__":
    PAGE.write_text(with_measurements(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
