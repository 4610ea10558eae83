"""Report on the CPU memory benchmark: error percentiles by family, and the operators behind each larger error."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

EXPLAINED = 0.005
"""The relative error from which a case is listed with its explanation."""

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
    """Return the whole report as text."""
    cases = list(rows(data))
    if not cases:
        return "no case ran"
    machine = ", ".join(f"{key} {value}" for key, value in data["machine"].items())
    lines = [f"CPU: predicted against measured peaks ({machine})", "", _head()]
    families: dict[str, list[Row]] = defaultdict(list)
    for row in cases:
        families[row.family].append(row)
    lines += [_line(family, members) for family, members in families.items()]
    lines.append(_line("all", cases))
    lines += ["", *_failures(data), *_explained(cases)]
    return "\n".join(lines)


def _head() -> str:
    shares = f"{'median':>8} {'90 %':>8} {'99 %':>8} {'worst':>9}"
    return f"{'family':12} {'models':>6} {'cases':>6} {'exact':>11} {shares}"


def _line(family: str, members: list[Row]) -> str:
    sizes = [abs(row.error) for row in members]
    worst = max(members, key=lambda row: abs(row.error)).error
    exact = sum(row.measured == row.predicted for row in members) / len(members)
    models = len({row.name.partition("/")[0] for row in members})
    shares = " ".join(f"{percentile(sizes, part):8.3%}" for part in (0.5, 0.9, 0.99))
    return f"{family:12} {models:6} {len(members):6} {exact:11.1%} {shares} {worst:+9.3%}"


def _failures(data: dict[str, Any]) -> list[str]:
    failed = [f"  {name}: {case['error']}" for name, case in data["cases"].items() if "error" in case]
    return ["Did not run:", *failed, ""] if failed else []


def _explained(cases: list[Row]) -> list[str]:
    """Yield a line for every case beyond the bound, with the blocks that are live at only one of the two peaks."""
    beyond = sorted((row for row in cases if abs(row.error) > EXPLAINED), key=lambda row: -abs(row.error))
    share = len(beyond) / len(cases)
    lines = [f"Beyond {EXPLAINED:.1%}: {len(beyond)} of {len(cases)} ({share:.1%}), with the bytes by operator that"]
    lines.append("the prediction has too many of (+) or too few (-) at its peak:")
    for row in beyond:
        parts = ", ".join(f"{maker} {nbytes:+,}" for maker, nbytes in _largest(row.difference))
        lines.append(f"  {row.error:+8.3%} {row.name:44} {parts}")
    lines += ["", "By operator: in how many of these it takes the largest part, and that part of the peak at most:"]
    leaders: Counter[str] = Counter()
    most: dict[str, float] = defaultdict(float)
    for row in beyond:
        maker, nbytes = max(row.difference.items(), key=lambda item: abs(item[1]), default=("", 0))
        leaders[maker] += 1
        most[maker] = max(most[maker], nbytes / row.measured, key=abs)
    lines += [f"  {count:5} {maker:44} {most[maker]:+.3%}" for maker, count in leaders.most_common()]
    return lines


def _largest(difference: dict[str, int]) -> list[tuple[str, int]]:
    """Return the three largest parts of a difference."""
    return sorted(difference.items(), key=lambda item: -abs(item[1]))[:3]
