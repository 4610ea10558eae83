"""Compare parameters and multiply-adds with torchvision's and timm's figures: ``python -m benchmarks.published``.

Multiply-adds count as equal within 1 %, or within the rounding of the last published digit. Otherwise the line names
the convention of the published counter that explains the difference, if there is one.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.limits import Timeout, time_limit
from benchmarks.published.habits import habit
from benchmarks.published.models import build, run
from benchmarks.zoo.torchvision_on_cpu import import_torchvision

DATA = Path(__file__).parents[1] / "data" / "published.csv"


@dataclass(frozen=True)
class Published:
    """A line of the data file. ``params`` is an integer, or millions with two digits such as ``25.56M``."""

    library: str
    model: str
    input: str
    params: str
    gmacs: str
    source: str

    def has_params(self, params: int) -> bool:
        """Return whether a count equals the published one, to the published digits.

        >>> line = Published("timm", "resnet50", "1x3x224x224", "25.56M", "4.11", "")
        >>> line.has_params(25_557_032), line.has_gmacs(4_089_000_000), line.has_gmacs(4_000_000_000)
        (True, True, False)
        """
        return self.params == (f"{params / 1e6:.2f}M" if self.params.endswith("M") else str(params))

    def has_gmacs(self, macs: int) -> bool:
        """Return whether a count equals the published one within 1 %, or half a unit of the last digit."""
        digits = len(self.gmacs.partition(".")[2])
        published = float(self.gmacs)
        return abs(macs / 1e9 - published) <= max(0.01 * published, float(f"0.5000001e-{digits}"))


@dataclass(frozen=True)
class Outcome:
    """The result for a model."""

    ran: bool = False
    params_equal: bool = False
    macs_equal: bool = False
    explained: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=["torchvision", "timm"])
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--seconds", type=int, default=300, help="time limit of a model")
    options = parser.parse_args()
    import_torchvision()
    print(f"{'model':40} {'params':>13} {'published':>11} {'GMACs':>9} {'published':>9} {'ratio':>6}  difference")
    outcomes: dict[str, list[Outcome]] = {}
    for line in read_published():
        if line.library == (options.library or line.library) and options.model in line.model:
            outcomes.setdefault(line.library, []).append(compare(line, options.seconds))
    for library, models in outcomes.items():
        print_totals(library, models)


def read_published(path: Path = DATA) -> Iterator[Published]:
    """Yield the lines of the data file."""
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            yield Published(**line)


def compare(line: Published, seconds: int) -> Outcome:
    """Print the line of a model, and return its result."""
    try:
        with time_limit(seconds):
            model = build(line.library, line.model, line.input)
            result = run(model, line.input)
    except (Exception, Timeout) as error:
        print(f"{line.model:40} did not run: {type(error).__name__}: {' '.join(str(error).split())[:200]}", flush=True)
        return Outcome()
    macs = result.total_mult_adds
    params_equal, macs_equal = line.has_params(result.total_params), line.has_gmacs(macs)
    why = "" if macs_equal else habit(line.has_gmacs, model, result)
    notes = ["" if params_equal else "other parameters", "" if macs_equal else why or "cause unknown"]
    if result.unknown_ops:
        notes.append(f"ours without {', '.join(name for name, _ in result.unknown_ops)}")
    print(
        f"{line.model:40} {result.total_params:13,} {line.params:>11} {macs / 1e9:9.3f} {line.gmacs:>9}"
        f" {macs / 1e9 / float(line.gmacs):6.3f}  {'; '.join(filter(None, notes))}".rstrip(),
        flush=True,
    )
    return Outcome(True, params_equal, macs_equal, bool(why))


def print_totals(library: str, outcomes: list[Outcome]) -> None:
    ran = [outcome for outcome in outcomes if outcome.ran]
    print(
        f"{library}: {len(ran)} of {len(outcomes)} models ran."
        f" Parameters equal: {sum(outcome.params_equal for outcome in ran)}."
        f" Multiply-adds within 1 %: {sum(outcome.macs_equal for outcome in ran)};"
        f" {sum(outcome.explained for outcome in ran)} more explained by a convention of the published counter."
    )


if __name__ == "__main__":
    main()
