"""A report -> the lines of a table in one style: which rows, in which order, and what is folded into them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..data.memory_records import RowMemory
from ..report.report import Report, Row, flat_rows
from .connections import Connections, path_names

UnknownOps = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table. The parameters of all lines add up to the total, in every style and at every depth.

    A line that stands for ``times`` equal neighbours has the figures of one of them.
    """

    row: Row
    label: str
    num_params: int
    trainable_params: int
    mult_adds: int
    unknown_ops: UnknownOps
    stands_for_others: bool
    """Whether rows below it are folded into it."""
    memory: RowMemory | None = None
    local_params: int = 0
    """Of ``num_params``, those that one rank has; 0 unless the memory is that of one rank."""
    times: int = 1
    active_params: int = 0
    param_bytes: int = 0
    unregistered_params: int = 0
    uninitialised_params: int = 0
    """How many parameters have no shape yet; the counts of elements leave them out."""
    connections: Connections | None = field(default=None, compare=False, repr=False)
    """What the lines of this table read, shared by all of them."""


def flat_lines(report: Report, depth: int | None = None) -> list[Line]:
    """Return torchsummary's lines: calls in the order they finish, named ``Class-N``; rows below ``depth`` are folded.

    Without a pass, they are named by their modules' paths. With a memory estimate, a container whose own functions keep
    memory has a line too.
    """
    rows = report.rows
    chosen = {row.index for row in flat_rows(rows)} | {
        row.index for row, own in zip(rows, report.row_memory) if own.any
    }
    home = _shown_above(report, depth)
    folded = {home[row.index] for row in rows if home[row.index] != row.index}
    totals = _Totals(report)
    for row in rows:
        target = row.index if row.user is None else row.user
        totals.add(home[target], row)
        totals.add_work(home[row.index], row)
    with_line = [row for row in rows if home[row.index] == row.index and (row.index in chosen or row.index in folded)]
    with_line.sort(key=lambda row: (not row.called, row.finished if row.called else row.index))
    labels = {row.index: f"{row.class_name}-{number}" for number, row in enumerate(with_line, 1)}
    if report.run.kind == "none":
        labels = {row.index: f"{row.path} ({row.class_name})" if row.path else row.class_name for row in with_line}
    connections = Connections(report, home, labels)
    return [totals.line(row, labels[row.index], row.index in folded, connections) for row in with_line]


def tree_lines(report: Report, depth: int | None = None) -> list[Line]:
    """Return the nested lines in call order; rows below ``depth`` are folded, and multiply-adds are inclusive."""
    rows = [row for row in report.rows if depth is None or row.depth <= depth]
    parents = {row.parent for row in rows}
    memory = _inclusive_memory(report)
    connections = Connections(report, _shown_above(report, depth), path_names(rows))
    lines = []
    for row in rows:
        within = [row] if row.index in parents or depth is None else _rows_below(report, row)
        folded = any(x.num_params or x.unregistered_params or x.uninitialised_params for x in within[1:])
        params = row.total_params if folded else row.num_params
        line = Line(
            row, _tree_name(row), params, sum(inner.trainable_params for inner in within), row.mult_adds,
            row.unknown_ops, folded, memory[row.index] if memory else None,
            local_params=sum(report.row_memory[inner.index].local_params for inner in within) if memory else 0,
            active_params=sum(inner.active_params for inner in within),
            param_bytes=sum(inner.param_bytes for inner in within),
            unregistered_params=sum(inner.unregistered_params for inner in within),
            uninitialised_params=sum(inner.uninitialised_params for inner in within),
            connections=connections,
        )  # fmt: skip
        lines.append(line)
    return lines


def _shown_above(report: Report, depth: int | None) -> list[int]:
    """Return for each row the one whose line it is folded into."""
    home: list[int] = []
    for row in report.rows:
        is_deep = depth is not None and row.depth > depth and row.parent is not None
        home.append(home[row.parent or 0] if is_deep else row.index)
    return home


def _tree_name(row: Row) -> str:
    if row.kind == "function" or not row.var_name:
        return row.class_name
    return f"{row.var_name} ({row.class_name})"


def _rows_below(report: Report, top: Row) -> list[Row]:
    """Return a row and all rows inside it."""
    below = {top.index: top}
    for row in report.rows[top.index + 1 :]:
        if row.parent not in below:
            break
        below[row.index] = row
    return list(below.values())


def _inclusive_memory(report: Report) -> list[RowMemory]:
    """Return each row's memory, including all rows below it."""
    memory = list(report.row_memory)
    for row in reversed(report.rows if memory else ()):
        if row.parent is not None:
            memory[row.parent] += memory[row.index]
    return memory


class _Totals:
    """Sums for flat lines, as rows are folded into them."""

    def __init__(self, report: Report) -> None:
        rows = report.rows
        self.own_memory = report.row_memory
        self.memory = [RowMemory(peak_bytes=own.peak_bytes, shards=own.shards) for own in self.own_memory]
        self.local = [0] * len(rows)
        self.params = [0] * len(rows)
        self.trainable = [0] * len(rows)
        self.active = [0] * len(rows)
        self.stored = [0] * len(rows)
        self.unregistered = [0] * len(rows)
        self.uninitialised = [0] * len(rows)
        self.macs = [0] * len(rows)
        self.unknown: dict[int, Counter[str]] = {}

    def add(self, index: int, row: Row) -> None:
        self.params[index] += row.num_params
        self.trainable[index] += row.trainable_params
        self.active[index] += row.active_params
        self.stored[index] += row.param_bytes
        self.unregistered[index] += row.unregistered_params
        self.uninitialised[index] += row.uninitialised_params
        if self.own_memory:
            self.local[index] += self.own_memory[row.index].local_params

    def add_work(self, index: int, row: Row) -> None:
        self.macs[index] += row.own_mult_adds
        if self.memory:
            self.memory[index] += self.own_memory[row.index]
        if row.own_unknown_ops:
            self.unknown.setdefault(index, Counter()).update(dict(row.own_unknown_ops))

    def line(self, row: Row, label: str, folded: bool, connections: Connections) -> Line:
        i = row.index
        unknown = tuple(sorted(self.unknown.get(i, {}).items()))
        memory = self.memory[i] if self.memory else None
        params, trainable, macs = self.params[i], self.trainable[i], self.macs[i]
        return Line(
            row, label, params, trainable, macs, unknown, folded, memory, local_params=self.local[i],
            active_params=self.active[i], param_bytes=self.stored[i], unregistered_params=self.unregistered[i],
            uninitialised_params=self.uninitialised[i],
            connections=connections,
        )  # fmt: skip


STYLES: dict[str, Callable[[Report, int | None], list[Line]]] = {
    "torchsummary": flat_lines,
    "tree": tree_lines,
    "rich": tree_lines,
}
"""The lines of each style; "rich" is the tree, which a terminal shows in colour."""
