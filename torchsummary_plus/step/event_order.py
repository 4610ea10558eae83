"""One order for releases that happen at the same time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import groupby


def in_order(events: list[tuple[int, int, int]], edges: Iterable[int] = ()) -> list[tuple[int, int, int]]:
    """Sort simultaneous releases by storage number, but not across the edges of calls and doubts.

    Autocast's cache frees its tensors in the order of a hash of their addresses, which differs between runs.
    """
    stops = sorted(set(edges))
    runs = groupby(enumerate(events), key=lambda item: (item[1][0], bool(item[1][2]), bisect_right(stops, item[0])))
    ordered: list[tuple[int, int, int]] = []
    for (_, is_made, _), run in runs:
        together = [event for _, event in run]
        ordered += together if is_made else sorted(together)
    return ordered
