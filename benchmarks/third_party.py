"""Check ``summary`` on third-party models: ``python -m benchmarks.third_party``.

Each model has random weights and is in eval mode. Parameters are compared with the model's distinct ones, multiply-adds
with torch's flop counter (``oracle.py``). The output is a line per model, then totals and reasons.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from benchmarks import oracle
from benchmarks.limits import Timeout, time_limit
from benchmarks.zoo import Case
from benchmarks.zoo_libraries import LIBRARIES, cases
from torchsummary_plus import ModelSummary, summary

TOLERANCE = 0.001


@dataclass(frozen=True)
class Checked:
    """The result for a model. ``failure`` is "" if everything is correct."""

    case: Case
    failure: str
    kind: str = ""
    reason: str = ""
    seconds: float = 0.0
    unknown_ops: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        unknown = " ".join(f"{name} x {count}" for name, count in self.unknown_ops)
        notes = (self.failure, self.reason if self.kind == "real" else "", unknown and f"unknown: {unknown}")
        name = f"{self.case.library}/{self.case.name}"
        return f"{name:54} {self.kind:5} {self.seconds:6.2f} s  {'; '.join(filter(None, notes)) or 'ok'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=LIBRARIES)
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--seconds", type=int, default=120, help="time limit of a model")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th model from the K-th")
    options = parser.parse_args()
    first, step = map(int, options.part.split("/"))
    checked = []
    for case in islice(cases(options.library, options.model), first, None, step):
        checked.append(check_in_time(case, options.seconds))
        print(checked[-1], flush=True)
        gc.collect()
    print_totals(checked)


def check_in_time(case: Case, seconds: int) -> Checked:
    try:
        with time_limit(seconds):
            return check(case)
    except (Exception, Timeout) as error:
        return Checked(case, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")


def check(case: Case) -> Checked:
    """Build a model, summarise it, and compare."""
    torch.manual_seed(oracle.SEED)
    model = case.make().eval()
    torch.manual_seed(oracle.SEED)
    started = time.perf_counter()
    result = summary(model, case.size, input_data=case.data, verbose=0)
    seconds = time.perf_counter() - started
    wrong = [wrong_parameters(model, result), wrong_multiply_adds(model, case, result)]
    failure = "; ".join(filter(None, wrong))
    return Checked(case, failure, result.run.kind, result.run.reason, seconds, result.unknown_ops)


def wrong_parameters(model: nn.Module, result: ModelSummary) -> str:
    true = oracle.parameters(model)
    rows = sum(row.num_params for row in result.rows)
    right = result.total_params == true == rows
    return "" if right else f"{result.total_params} parameters, {rows} in rows, not {true}"


def wrong_multiply_adds(model: nn.Module, case: Case, result: ModelSummary) -> str:
    args, kwargs = arguments(case)
    try:
        true, where = oracle.multiply_adds(model, args, kwargs)
    except Exception as error:
        return f"no oracle: {type(error).__name__}: {' '.join(str(error).split())[:100]}"
    ours = result.total_mult_adds
    if abs(ours - true) <= TOLERANCE * true:
        return ""
    return f"{ours:,} mult-adds, {true:,} on {where}, ratio {ours / true if true else float('inf'):.4f}"


def arguments(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of one forward, with a batch of 1 if the case leaves it open."""
    if case.size is not None:
        sizes = case.size if isinstance(case.size, list) else [case.size]
        return tuple(torch.rand(1, *size) for size in sizes), {}
    return ((), case.data) if isinstance(case.data, dict) else (case.data, {})


def print_totals(checked: list[Checked]) -> None:
    for library in dict.fromkeys(check.case.library for check in checked):
        mine = [check for check in checked if check.case.library == library]
        ran = [check for check in mine if check.kind]
        print(
            f"{library}: {len(mine)} models, {len(ran)} ran, {sum(c.kind == 'fake' for c in ran)} on fake tensors;"
            f" parameters correct for {sum('parameters' not in c.failure for c in ran)},"
            f" mult-adds for {sum('mult-adds' not in c.failure and 'oracle' not in c.failure for c in ran)}"
        )
    reasons = Counter(check.reason.partition(": ")[2] for check in checked if check.kind == "real")
    for reason, count in reasons.most_common():
        print(f"{count:4} real: {reason}")
    unknown = Counter(name for check in checked for name, _ in check.unknown_ops)
    for name, count in unknown.most_common():
        print(f"{count:4} models with unknown {name}")


if __name__ == "__main__":
    main()
