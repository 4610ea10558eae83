"""What can be wrong in the rows of a summary that was read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..data.records import FROM_INPUT, RETURNED, Flow

Row = Any
"""A row of a :class:`Report`, whose file imports this one."""


def rows_contradiction(rows: Sequence[Row]) -> str:
    """Return what is wrong in rows that were read, which are listed as a tree in pre-order; "" if nothing is."""
    around: list[int | None] = [None]
    for place, row in enumerate(rows):
        while around and around[-1] != row.parent:
            around.pop()
        if row.index != place or not around or row.depth != len(around) - 1 or (row.parent is None) != (place == 0):
            return f"row {place} is not where its parent and depth say"
        if row.called != (row.finished is not None) or not (row.user is None or 0 <= row.user < len(rows)):
            return f"row {place} has the end of another's call, or is used by no row"
        figures = (row.num_params, row.trainable_params, row.total_params, row.own_mult_adds, row.mult_adds)
        outside = (row.unregistered_params, row.uninitialised_params)
        if min(*figures, *outside, row.output_bytes, row.active_params, row.param_bytes) < 0:
            return f"a count of row {place} is negative"
        around.append(place)
    return "" if rows else "it has no rows"


def flow_contradiction(flow: Flow, rows: Sequence[Row]) -> str:
    """Return what is wrong in a flow between rows that was read; "" if nothing is."""
    owners = [owner for owner in flow.owners if owner not in (FROM_INPUT, RETURNED)]
    return "" if all(0 <= owner < len(rows) and rows[owner].called for owner in owners) else "a step belongs to no call"
