"""Interrupt calls, and read damaged files: ``python -m benchmarks.fire``.

``python -m benchmarks.fire interrupts --count 200`` or ``mutants --count 200 onnx`` runs one part. The exit status is 1
if anything broke.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.fire import interrupts


def _mutants(words: Sequence[str]) -> bool:
    """Read damaged files and return whether all went well."""
    from benchmarks.fire.mutants import run  # Imported here: it needs the extras onnx and transformers.

    parser = argparse.ArgumentParser(prog="python -m benchmarks.fire mutants")
    parser.add_argument("--count", type=int, default=10_000, help="mutants of each format (default 10000)")
    parser.add_argument("formats", nargs="*", help="only these formats")
    options = parser.parse_args(words)
    return run(options.count, options.formats)


PARTS = {"interrupts": interrupts.main, "mutants": _mutants}


def main(words: Sequence[str]) -> int:
    """Run one part with its options, or all parts, and return the exit status."""
    if words and words[0] not in PARTS:
        raise SystemExit(f"{words[0]!r} is no part; accepted: {', '.join(PARTS)}")
    went_well = [PARTS[words[0]](words[1:])] if words else [part(()) for part in PARTS.values()]
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
