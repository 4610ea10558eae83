"""The column "Connected to" of Keras: the lines whose outputs each line of a table reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ..formats.table import Cell, Value
from ..report.graph import OUTPUT, edges_between
from ..table.columns import absent
from ..table.lines import Layout, Line
from ..table.rows import Report


def connected_to(line: Line, report: Report) -> Value | Cell:
    """Return the names of the lines that a line reads from outside itself."""
    read = None if line.layout is None else _reads(line.layout).get(line.row.index)
    return absent(line) if read is None else ", ".join(read) or None


@lru_cache(maxsize=1)
def _reads(layout: Layout) -> dict[int, dict[str, None]]:
    """Return what each line of a table reads, by its row; a row that never ran has no entry."""
    flow, rows = layout.report.flow, layout.report.rows
    if flow is None:
        return {}
    around = {row.index: row.parent for row in rows}
    called = [index for index in layout.names if rows[index].called]
    groups = {above for index in called for above in _with_those_around(around[index], around)}
    read: dict[int, dict[str, None]] = {row.index: {} for row in rows if row.called or row.index in groups}
    inputs = sum(owner == -1 for owner in flow.owners)
    for source, target in edges_between(flow, layout.home, set(layout.names) - groups):
        if target == OUTPUT:
            continue
        outside = set(_with_those_around(source, around)) if source >= 0 else set()
        given = "input" if inputs == 1 else f"input {OUTPUT - source}"
        for index in _with_those_around(target, around):
            if index not in outside:
                read[index][layout.names[source] if source >= 0 else given] = None
    return read


def _with_those_around(index: int | None, around: Mapping[int, int | None]) -> list[int]:
    """Return a row and all rows around it."""
    rows = []
    while index is not None:
        rows.append(index)
        index = around[index]
    return rows
