"""The lines whose outputs each line of a table reads: Keras's "Connected to"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from ..report.graph import OUTPUT, edges_between
from ..report.report import Report, Row


class Connections:
    """The connections of a table's lines, computed on first use.

    ``home`` has for each row the one whose line it is folded into; ``names`` has the name of each row with a line.
    """

    def __init__(self, report: Report, home: Sequence[int], names: Mapping[int, str]) -> None:
        self.report = report
        self.home = home
        self.names = names

    def of(self, row: Row) -> tuple[str, ...] | None:
        """Return the names of the lines that a row reads from outside itself; None if the row never ran."""
        return tuple(self._read[row.index]) if row.index in self._read else None

    @cached_property
    def _read(self) -> dict[int, dict[str, None]]:
        flow, rows = self.report.flow, self.report.rows
        if flow is None:
            return {}
        around = {row.index: row.parent for row in rows}
        called = [index for index in self.names if rows[index].called]
        groups = {above for index in called for above in _line(around[index], around)}
        read: dict[int, dict[str, None]] = {row.index: {} for row in rows if row.called or row.index in groups}
        for source, target in edges_between(flow, self.home, set(self.names) - groups):
            if target == OUTPUT:
                continue
            outside = set(_line(source, around)) if source >= 0 else set()
            for index in _line(target, around):
                if index not in outside:
                    read[index][self._name(source)] = None
        return read

    def _name(self, index: int) -> str:
        if index >= 0:
            return self.names[index]
        inputs = sum(owner == -1 for owner in self.report.flow.owners) if self.report.flow is not None else 0
        return "input" if inputs == 1 else f"input {OUTPUT - index}"


def _line(index: int | None, around: Mapping[int, int | None]) -> list[int]:
    """Return a row and all rows around it."""
    producers = []
    while index is not None:
        producers.append(index)
        index = around[index]
    return producers


def path_names(rows: Sequence[Row]) -> dict[int, str]:
    """Return the name of each row as a path: of a function below its caller's, with a number from the second on.

    A module's second call is ``fc#2``, the second addition in a block ``layer1.0.add#2``.
    """
    seen: Counter[str] = Counter()
    names = {}
    for row in rows:
        below = f"{row.path}." if row.kind == "function" and row.path else ""
        name = f"{below}{row.class_name}" if row.kind == "function" or not row.path else row.path
        seen[name] += 1
        names[row.index] = name if seen[name] == 1 else f"{name}#{seen[name]}"
    return names
