"""Measure what each rule for oneDNN's kernels contributes: ``python -m benchmarks.onednn_rules``.

Each rule is disabled in turn: a size becomes 0, a condition False, a plan empty. Two numbers show its contribution:

- *recorded*: the recorded CPU peaks (``data/cpu_truth_<isa>.json``) of steps in which a plan changes, and how many of
  the re-estimated steps change their peak. Convolutions are the same for every optimizer, so one training step
  represents five recorded ones, and at most ``--sample`` steps are estimated again, the fastest first.
- *profiled*: random convolutions, measured by torch's profiler on one and on four threads, that are no longer exact, or
  no longer within their range. ``--part 0/1`` leaves the models out. Few random convolutions meet a rule for special
  shapes: ``--seek 2500`` draws so many of three kinds and profiles only those whose plan the rule changes.

``ATEN_CPU_CAPABILITY`` and ``ONEDNN_MAX_CPU_ISA`` restrict the instruction set.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from types import ModuleType
from typing import Any, get_type_hints

import torch

from benchmarks.cpu_truth import BATCHES, MODES, Case, built, isa, predict
from benchmarks.cpu_truth_models import SUBJECTS
from tests.ops.convs import Case as Convolution
from tests.ops.convs import Seen, random_cases, seen, special_cases, verdict, wide_cases
from tests.truth.memory_truth import threads_set_to
from torchsummary_plus.ops.scratch.cpu import convolution as calls
from torchsummary_plus.ops.scratch.cpu import half as half_calls
from torchsummary_plus.ops.scratch.cpu.onednn import (
    channels_last,
    convolution,
    gemm,
    half,
    inner_product,
    products,
    threads,
)
from torchsummary_plus.ops.scratch.cpu.onednn.description import Plan
from torchsummary_plus.ops.scratch.registry import AtMost

HOMES = (convolution, inner_product, channels_last, threads, gemm, products, half)
USERS: tuple[ModuleType, ...] = (*HOMES, calls, half_calls)
WITHOUT: dict[Any, Any] = {int: 0, float: 0.0, bool: False, Plan: Plan(0, 0, 0), AtMost: AtMost(0)}
"""What a disabled rule returns, by its type."""

CACHED = products.by_blocks
"""The rule that caches its results."""

PROFILED = 20
"""Most convolutions that are profiled for a rule, where those are sought that it changes."""

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Rule:
    """A function of a kernel's description, and what it returns when disabled."""

    name: str
    function: Callable[..., Any]
    without: Any


@dataclass(frozen=True)
class Step:
    """A step of a recorded model: the recorded peaks it represents, its peak, its seconds, and its kernels."""

    case: Case
    stands_for: int
    peak_bytes: int
    seconds: float
    kernels: frozenset[Key]


def rules() -> Iterator[Rule]:
    """Yield every function in the rules' files that returns a size, a condition or a plan."""
    for home in HOMES:
        for name, function in vars(home).items():
            if callable(function) and not isinstance(function, type) and function.__module__ == home.__name__:
                kind = get_type_hints(getattr(function, "__wrapped__", function)).get("return")
                if kind in WITHOUT:
                    yield Rule(f"{home.__name__.rsplit('.', 1)[-1]}.{name}", function, WITHOUT[kind])


@contextmanager
def disabled(rule: Rule) -> Iterator[None]:
    """Disable a rule wherever it is called."""

    def nothing(*_: Any, **__: Any) -> Any:
        return rule.without

    places = [(user, name) for user in USERS for name, value in vars(user).items() if value is rule.function]
    plans = dict(calls.PLANS)
    for user, name in places:
        setattr(user, name, nothing)
    for key, three in plans.items():
        calls.PLANS[key] = tuple(nothing if plan is rule.function else plan for plan in three)
    CACHED.cache_clear()
    try:
        yield
    finally:
        for user, name in places:
            setattr(user, name, rule.function)
        calls.PLANS.update(plans)
        CACHED.cache_clear()


@contextmanager
def recording() -> Iterator[set[Key]]:
    """Collect the kernels of a step: plans of convolutions, and scratchpads of half-precision products."""
    kernels: set[Key] = set()
    planned, scratchpad = calls._planned, half_calls._scratchpad

    def of_convolution(call: Any, last: bool, part: int) -> Plan:
        kernels.add((planned, call, last, part))
        return planned(call, last, part)

    def of_product(*args: Any) -> Any:
        kernels.add((scratchpad, *args))
        return scratchpad(*args)

    calls._planned, half_calls._scratchpad = of_convolution, of_product
    try:
        yield kernels
    finally:
        calls._planned, half_calls._scratchpad = planned, scratchpad


def steps(part: int, parts: int) -> Iterator[Step]:
    """Yield an inference and a training step of each recorded model, at both batch sizes, estimated with all rules."""
    for subject in SUBJECTS[part - 1 :: parts] if part else ():
        for mode, stands_for in (("eval", 1), ("sgd", len(MODES) - 1)):
            for batch in BATCHES:
                case, began = Case(subject, mode, batch), time.process_time()
                try:
                    with recording() as kernels:
                        peak = predict(case, *built(case)).peak_bytes
                except (ImportError, OSError) as error:
                    print(f"left out: {case.name}: {error}")
                    continue
                yield Step(case, stands_for, peak, time.process_time() - began, frozenset(kernels))


def profiled(count: int) -> list[tuple[int, Seen, str]]:
    """Return random convolutions as measured by the profiler, each with its threads and the verdict with all rules."""
    records = []
    for threads_used in (1, 4):
        with threads_set_to(threads_used):
            pairs = seen(list(islice(random_cases(17), count)))
            records += [(threads_used, operator, verdict(operator)) for pair in pairs for operator in pair]
    return records


def sought(count: int, chosen: Sequence[Rule]) -> None:
    """Print, for each rule, the convolutions whose plan it changes, and of some of them the operators it gets right."""
    cases = list(chain.from_iterable(islice(draw, count) for draw in (
        random_cases(5, (torch.float32,)), special_cases(5), wide_cases(5)
    )))  # fmt: skip
    for threads_used in (1, 4):
        with threads_set_to(threads_used):
            usual = [_plans(case) for case in cases]
            for rule in chosen:
                with disabled(rule):
                    changed = [case for case, plans in zip(cases, usual) if _plans(case) != plans]
                operators = [operator for pair in seen(changed[:PROFILED]) for operator in pair]
                verdicts = [verdict(operator) for operator in operators]
                with disabled(rule):
                    wrong = sum(not is_the_same(threads_used, *each) for each in zip(operators, verdicts))
                outcome = f"{len(changed):5,} changed; {wrong} of {len(operators)} differ"
                print(f"{threads_used} threads {rule.name:42} {outcome}", flush=True)


def _plans(case: Convolution) -> list[Any]:
    """Return the plans of a convolution's forward, input gradient and weight gradient."""
    with torch.device("meta"):
        x, weight, bias = case.tensors()
        y = torch.empty(case.batch, case.channels[1], *case.output)
    stride, padding, dilation, transposed, _, groups = case.settings
    conv = calls.described(x, weight, y, bias is not None, stride, padding, dilation, transposed, groups)
    call, _ = calls.called(conv, transposed, x, weight)
    return [answer((calls._planned, call, calls._goes_last(call), part)) for part in range(3)]


def is_the_same(threads_used: int, operator: Seen, usual: str) -> bool:
    with threads_set_to(threads_used):
        try:
            return verdict(operator) == usual
        except (ArithmeticError, LookupError, ValueError):  # Another rule may fail on the 0.
            return False


def answer(key: Key) -> Any:
    function, *args = key
    try:
        return function(*args)
    except (ArithmeticError, LookupError, ValueError) as error:
        return repr(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="the i-th of n parts of the models: i/n")
    parser.add_argument("--sample", type=int, default=6, help="maximum number of steps to estimate again for a rule")
    parser.add_argument("--convolutions", type=int, default=150, help="number of profiled convolutions")
    parser.add_argument("--rules", nargs="*", default=[""], help="only rules whose names contain one of these texts")
    parser.add_argument("--seek", type=int, help="draw so many convolutions of each kind for those that a rule changes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [rule for rule in rules() if any(text in rule.name for text in options.rules)]
    if options.seek:
        sought(options.seek, chosen)
        return
    torch.set_num_threads(1)
    done = list(steps(*map(int, options.part.split("/"))))
    keys = frozenset().union(*(step.kernels for step in done))
    usual = {key: answer(key) for key in keys}
    truths = profiled(options.convolutions)
    peaks = sum(step.stands_for for step in done)
    print(f"{isa()}: {peaks:,} recorded peaks, {len(keys):,} kernels, {len(truths):,} profiled operators")
    print(f"{'rule':42} {'recorded':>9} {'of sample':>10} {'profiled':>9}")
    for rule in chosen:
        with disabled(rule):
            changed = {key for key in keys if answer(key) != usual[key]}
            touched = sorted((step for step in done if step.kernels & changed), key=lambda step: step.seconds)
            sample = touched[: options.sample]
            moved = sum(_peak(step) != step.peak_bytes for step in sample)
            wrong = sum(not is_the_same(*truth) for truth in truths)
        recorded = sum(step.stands_for for step in touched)
        print(f"{rule.name:42} {recorded:9,} {f'{moved} of {len(sample)}':>10} {wrong:9,}", flush=True)


def _peak(step: Step) -> int | None:
    """Return the step's peak with the current rules, or None if they fail."""
    try:
        peak: int = predict(step.case, *built(step.case)).peak_bytes
        return peak
    except Exception:
        return None


if __name__ == "__main__":
    main()
