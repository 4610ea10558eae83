"""The lines below a figure that say what it does not know and what it assumes."""

from __future__ import annotations

from collections.abc import Sequence

from .units import one_line

SHOWN_ASSUMPTIONS = 3
"""How many assumptions are shown."""


def caveats(unknown: Sequence[tuple[str, int]], assumptions: Sequence[str]) -> list[str]:
    """Return a line for the operators without a scratch-memory rule, and one for each of the first assumptions.

    >>> caveats([("mylib::rotate", 2)], [])
    ['Scratch memory not confirmed: mylib::rotate x 2']
    """
    return [*([not_confirmed(unknown)] if unknown else []), *assumed(assumptions)]


def not_confirmed(unknown: Sequence[tuple[str, int]]) -> str:
    """Return the line that lists the operators without a scratch-memory rule."""
    return "Scratch memory not confirmed: " + ", ".join(f"{one_line(name)} x {count:,}" for name, count in unknown)


def assumed(assumptions: Sequence[str], most: int | None = SHOWN_ASSUMPTIONS) -> list[str]:
    """Return a line for each of the first ``most`` assumptions; None means all."""
    lines = [f"Assumed: {one_line(assumption)}" for assumption in assumptions[:most]]
    others = len(assumptions) - len(lines)
    return [*lines, f"Assumed: {others:,} more; see assumptions"] if others > 0 else lines
