"""Interrupt calls at random instants, or at each of their first lines: ``python -m benchmarks.fire.interrupts``.

SIGINT and an alarm whose handler raises an exception of its own are sent in turn to child processes, in which a model
is trained. After each, the model, its data, its optimizer and the process must be unchanged, and the next training step
must give the same numbers (``tests/truth/interrupts.py``).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice, product
from statistics import median, quantiles

from tabulate import tabulate

from tests.truth.interrupted_models import CALLS, MODELS
from tests.truth.interrupts import ABORTED, BROKEN, FAULTS, FINISHED, GOOD, REPLACED, Instant, Outcome, run
from tests.truth.interrupts import EXCEPTIONS as SIGNALS
from tests.truth.warm import python

LARGER = [name for name in MODELS if name != "small"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="random interrupts (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=int, default=0, help="interrupt each of a call's first lines, such as 2000")
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one; may be repeated")
    parser.add_argument("--call", action="append", choices=CALLS, help="only this one; may be repeated")
    options = parser.parse_args()
    if options.lines:
        lines = range(1, options.lines + 1)
        drawn = product(options.model or ["small", "hooked"], options.call or CALLS, SIGNALS, lines)
        plan = [(model, Instant(call, sent, line)) for model, call, sent, line in drawn]
    else:
        plan = list(islice(_random_instants(options), options.count))
    outcomes: dict[str, list[Outcome]] = {}
    for model in dict.fromkeys(model for model, _ in plan):
        instants = [instant for of, instant in plan if of == model]
        for number, outcome in enumerate(run(model, instants, python()), 1):
            outcomes.setdefault(outcome.instant.call, []).append(outcome)
            if outcome.verdict in FAULTS:
                print(f"{model}, {number} of {len(instants)}: {outcome}", flush=True)
    print(_table(outcomes))
    sys.exit(any(outcome.verdict in FAULTS for found in outcomes.values() for outcome in found))


def _random_instants(options: argparse.Namespace) -> Iterator[tuple[str, Instant]]:
    """Yield models, calls and signals in turn, each with a random instant."""
    dice = random.Random(options.seed)
    for model, call, sent in cycle(product(options.model or LARGER, options.call or CALLS, SIGNALS)):
        yield model, Instant(call, sent, dice.random(), "duration")


def _table(outcomes: dict[str, list[Outcome]]) -> str:
    kinds = (BROKEN, ABORTED, REPLACED, FINISHED)
    rows = []
    for call, found in outcomes.items():
        verdicts = Counter(outcome.verdict for outcome in found)
        delays = [outcome.delay_ms for outcome in found if outcome.verdict == GOOD] or [0.0]
        late = quantiles(delays, n=20)[-1] if len(delays) > 1 else delays[0]
        rows.append([call, len(found), *(verdicts[kind] for kind in kinds), median(delays), late])
    return tabulate(rows, ["call", "interrupts", *kinds, "median delay, ms", "95th percentile, ms"], floatfmt=".2f")


if __name__ == "__main__":
    main()
