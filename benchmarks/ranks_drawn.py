"""Compare each rank's memory in random distributed programs with real gloo processes.

    python -m benchmarks.ranks_drawn --seed 1 [--count 20] [--first 0] [--world 2 4] [--way fsdp] [--explain]

Programs that fail in real processes count as invalid, or as ``runs-here`` if they have an estimate nevertheless. Under
load, gloo's threads may release a tensor late, so a program that differs runs twice more, and its lowest peak counts.
``--way`` draws only one kind of sharding.
"""

from __future__ import annotations

import argparse
import random
import traceback
import warnings
from collections import Counter

from benchmarks.ranks_drawn_cases import case_of
from benchmarks.ranks_truth import Truth, explain, measured, predicted, with_same_kernels

AT_ONCE = 10
SECONDS = 90.0
"""Time limit for the programs that run at once."""


def truths_of(names: list[str], world_size: int) -> dict[tuple[str, int], Truth]:
    """Return the measurements by name and rank; none for a program that hangs."""
    truths: dict[tuple[str, int], Truth] = {}
    while names:
        ran = {(truth.case, truth.rank): truth for truth in measured(names[:AT_ONCE], world_size, SECONDS)}
        truths |= ran
        done = sum(all((name, rank) in ran for rank in range(world_size)) for name in names[:AT_ONCE])
        names = names[max(done, 1) :] if done == len(names[:AT_ONCE]) else names[done + 1 :]
    return truths


def lowest(name: str, truth: Truth, world_size: int) -> Truth:
    """Return the measurement of a rank with the lowest peak of three runs."""
    again = [truths_of([name], world_size).get((name, truth.rank)) for _ in range(2)]
    return min(
        (truth, *(attempt for attempt in again if attempt and not attempt.failed)),
        key=lambda attempt: attempt.peak_bytes,
    )


def verdict(name: str, truth: Truth | None, world_size: int, rank: int, shows: bool) -> str:
    """Return the verdict on a program on a rank: a line that begins with the kind of verdict."""
    real = truth.failed if truth else "it hangs"
    try:
        estimate = predicted(case_of(name), world_size, rank)
    except Exception as error:
        if truth is None or real:
            return f"invalid {real[:100]}"
        if shows:
            traceback.print_exc()
        return f"failed {type(error).__name__}: {str(error)[:300]}"
    if truth is None or real:
        return f"runs-here {real[:200]}"
    low, high = estimate.peak_range
    apart = estimate.peak_bytes - truth.peak_bytes
    kind = "exact" if not apart else "in-range" if low <= truth.peak_bytes <= high else "outside"
    if shows and apart:
        explain(truth, estimate)
    left = estimate.steady_bytes - truth.left_bytes
    return f"{kind} {truth.peak_bytes:,} error {apart:+,} ({100 * apart / truth.peak_bytes:+.2f} %) left {left:+,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--world", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--way", default="")
    parser.add_argument("--explain", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with_same_kernels("benchmarks.ranks_drawn")
    way = f" {options.way}" if options.way else ""
    names = [f"drawn {options.seed}:{number}{way}" for number in range(options.first, options.first + options.count)]
    for world_size in options.world:
        truths = truths_of(names, world_size)
        kinds: Counter[str] = Counter()
        for name in names:
            rank = random.Random(name).randrange(world_size)
            truth = truths.get((name, rank))
            said = verdict(name, truth, world_size, rank, options.explain)
            if truth is not None and said.startswith("outside"):
                said = verdict(name, lowest(name, truth, world_size), world_size, rank, options.explain)
            kinds[said.split()[0]] += 1
            print(f"{name} [{world_size}:{rank}] {said}", flush=True)
            if not said.startswith(("exact", "invalid")):
                print(f"    {case_of(name)}", flush=True)
        print(f"world of {world_size}:", ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))


if __name__ == "__main__":
    main()
