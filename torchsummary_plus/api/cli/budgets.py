"""Budgets: figures that a model must not exceed, checked by the shell command for CI."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...data.errors import InputError
from ...data.units import COUNT_UNITS, in_common_unit
from ...table.rows import Report

if TYPE_CHECKING:
    from ...memory.estimate import Estimate
    from ...results.weights_file import WeightsFile


def add_budget_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for budgets."""
    group = parser.add_argument_group("budgets (the exit status is 3 if one is exceeded, or a step does not fit --gpu)")
    group.add_argument("--max-params", metavar="COUNT", type=count, help="the most parameters: 30M, 7B, 125000")
    group.add_argument("--max-mult-adds", metavar="COUNT", type=count, help="the most multiply-adds per sample: 5G")
    group.add_argument("--max-memory", metavar="MEMORY", type=memory, help="the highest peak of the step: 24GiB, 24GB")


def count(word: str) -> int:
    """Parse a count, in units of K, M, G (or B) or T.

    >>> count("30M"), count("1.5g"), count("7B"), count("125_000")
    (30000000, 1500000000, 7000000000, 125000)
    """
    match = re.fullmatch(r"([\d_,]+(?:\.\d+)?)\s*([kmgbt]?)", word.strip(), re.IGNORECASE)
    if match is None or not re.search(r"\d", match[1]):
        raise argparse.ArgumentTypeError(f"{word!r} is not a count; accepted: a number such as 30M, 5G or 125000")
    return round(float(re.sub("[_,]", "", match[1])) * COUNT_UNITS[match[2].upper()])


def memory(word: str) -> int:
    """Parse an amount of memory in bytes, as ``--gpu`` does."""
    from ...memory.gpus import parse_memory

    try:
        return parse_memory(word)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def exceeded(arguments: argparse.Namespace, counted: Report | WeightsFile | None, step: Estimate | None) -> str:
    """Return a line that names each budget that is exceeded, and by what; "" if none is."""
    return "; ".join([*_counts(arguments, counted), *_bytes(arguments, step)])


def _counts(arguments: argparse.Namespace, counted: Report | WeightsFile | None) -> Iterator[str]:
    """Yield the counts that are too high, or of which only a lower bound is known."""
    if counted is None:
        return
    report = counted if isinstance(counted, Report) else None
    figures = [("params", "parameters", counted.total_params, report is not None and report.uninitialised_params)]
    if report is not None:
        from ...render.comparison_tables import per_sample

        work = per_sample(report.total_mult_adds, report)
        figures.append(("mult_adds", "multiply-adds per sample", work, bool(report.unknown_ops)))
    for name, words, value, is_partial in figures:
        most = getattr(arguments, f"max_{name}")
        if most is not None and (value > most or is_partial):
            least = "at least " if is_partial else ""
            yield f"{least}{value:,} {words}; --max-{name.replace('_', '-')} is {most:,}"


def _bytes(arguments: argparse.Namespace, step: Estimate | None) -> Iterator[str]:
    """Yield the peak if it is too high, and what is missing if the step does not fit."""
    if step is None:
        return
    most = arguments.max_memory
    if most is not None and step.peak_bytes > most:
        yield f"a peak of {in_common_unit(step.peak_bytes)}; --max-memory is {in_common_unit(most)}"
    fit = None if arguments.gpu is None else step.fits(arguments.gpu)
    if fit is not None and not fit:
        yield f"the step does not fit in {arguments.gpu}: {fit.headroom.removeprefix('no, ')}"
