"""Interrupt calls, and read damaged files: ``python -m benchmarks.fire``.

``python -m benchmarks.fire interrupts --count 200`` or ``mutants --count 200 onnx`` runs one part. The exit status is 1
if anything broke.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.fire import interrupts
from tests.truth.interrupted_models import CALLS, MODELS


def options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fire", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("interrupts", description=interrupts.__doc__)
    part.add_argument("--count", type=int, default=1000, help="random interrupts (default 1000)")
    part.add_argument("--seed", type=int, default=0)
    part.add_argument("--lines", type=int, default=0, help="interrupt each of a call's first lines, such as 2000")
    part.add_argument("--model", action="append", choices=MODELS, help="only this one; may be repeated")
    part.add_argument("--call", action="append", choices=CALLS, help="only this one; may be repeated")
    part = parts.add_parser("mutants", description="Read damaged files.")
    part.add_argument("--count", type=int, default=10_000, help="mutants of each format (default 10000)")
    part.add_argument("formats", nargs="*", help="only these formats")
    return parser.parse_args(words)


def run(words: list[str]) -> bool:
    """Run one part with its options, and return whether all went well."""
    chosen = options(words)
    if chosen.part == "interrupts":
        return interrupts.run_all(chosen)
    from benchmarks.fire import mutants  # Imported here: it needs the extras onnx and transformers.

    return mutants.run(chosen.count, chosen.formats)


if __name__ == "__main__":
    went_well = [run(sys.argv[1:])] if sys.argv[1:] else [run(["interrupts"]), run(["mutants"])]
    sys.exit(not all(went_well))
