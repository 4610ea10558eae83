"""Report on the CPU memory benchmark: error percentiles by family, and the operators behind each error."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

NAMES = ("first", "steady")


@dataclass(frozen=True)
class Row:
    """One step of a case."""

    name: str
    family: str
    measured: int
    predicted: int
    difference: dict[str, int]

    @property
    def error(self) -> float:
        """The signed error, relative to the measured peak."""
        return (self.predicted - self.measured) / self.measured


def rows(data: dict[str, Any]) -> Iterator[Row]:
    """Yield the steps of all cases that ran."""
    for name, case in data["cases"].items():
        if "error" not in case:
            parts = case.get("difference", [{}, {}])
            for step, real, fake, part in zip(NAMES, case["measured"], case["predicted"], parts):
                yield Row(f"{name}/{step}", case["family"], real, fake, part)


def percentile(values: list[float], part: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1)]


def report(data: dict[str, Any]) -> str:
    """Return the whole report as text: errors by family, and the cases that did not run or are not exact."""
    cases = list(rows(data))
    if not cases:
        return "no case ran"
    families: dict[str, list[Row]] = defaultdict(list)
    for row in cases:
        families[row.family].append(row)
    table = [_line(family, members) for family, members in {**families, "all": cases}.items()]
    head = ("family", "models", "cases", "exact", "median", "90 %", "99 %", "worst")
    machine = ", ".join(f"{key} {value}" for key, value in data["machine"].items())
    failed = [f"{name}: {case['error']}" for name, case in data["cases"].items() if "error" in case]
    lines = [f"CPU: predicted against measured peaks ({machine})", tabulate(table, head), *failed]
    for row in sorted((row for row in cases if row.error), key=lambda row: -abs(row.error)):
        parts = sorted(row.difference.items(), key=lambda item: -abs(item[1]))[:3]
        lines.append(f"{row.error:+8.3%} {row.name:44} {', '.join(f'{maker} {nbytes:+,}' for maker, nbytes in parts)}")
    return "\n".join(lines)


def _line(family: str, members: list[Row]) -> tuple[Any, ...]:
    sizes = [abs(row.error) for row in members]
    exact = sum(row.measured == row.predicted for row in members) / len(members)
    models = len({row.name.partition("/")[0] for row in members})
    shares = (f"{percentile(sizes, part):.3%}" for part in (0.5, 0.9, 0.99, 1.0))
    return family, models, len(members), f"{exact:.1%}", *shares
