"""A report -> the lines of a table in one style: which rows, in which order, and what is folded into them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from ..data.memory_records import RowMemory
from .rows import Report, Row, flat_rows, when_finished


@dataclass(frozen=True, eq=False)
class Layout:
    """What the lines of a table share: the report, for each row the one whose line it is folded into, the lines' names.

    Names are by row.
    """

    report: Report
    home: Sequence[int]
    names: Mapping[int, str]


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
    unknown_ops: tuple[tuple[str, int], ...]
    stands_for_others: bool
    """Whether rows with parameters are folded into it."""
    memory: RowMemory | None = None
    local_params: int = 0
    """Of ``num_params``, those that one rank has; 0 unless the memory is that of one rank."""
    times: int = 1
    active_params: int = 0
    param_bytes: int = 0
    unregistered_params: int = 0
    uninitialised_params: int = 0
    """How many parameters have no shape yet; the counts of elements leave them out."""
    layout: Layout | None = field(default=None, compare=False, repr=False)


def flat_lines(report: Report, depth: int | None = None) -> list[Line]:
    """Return torchsummary's lines: calls in the order they finish, named ``Class-N``; rows below ``depth`` are folded.

    Without a pass, they are named by their modules' paths. With a memory estimate, a container whose own functions keep
    memory has a line too.
    """
    rows, home = report.rows, _shown_above(report, depth)
    counts: dict[int, list[Row]] = defaultdict(list)
    work: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        counts[home[row.index if row.user is None else row.user]].append(row)
        work[home[row.index]].append(row)
    shown = set(map(attrgetter("index"), flat_rows(rows)))
    for row in rows:
        if len(work[row.index]) > 1 or (report.row_memory and report.row_memory[row.index].any):
            shown.add(row.index)
    labels: dict[int, str] = {}
    layout, lines = Layout(report, home, labels), []
    for row in sorted(map(rows.__getitem__, shown), key=when_finished):
        if home[row.index] == row.index:
            label = f"{row.class_name}-{len(labels) + 1}"
            if report.run.kind == "none":
                label = f"{row.path} ({row.class_name})" if row.path else row.class_name
            labels[row.index] = label
            lines.append(_line(work[row.index], counts[row.index], label, layout))
    return lines


def tree_lines(report: Report, depth: int | None = None) -> list[Line]:
    """Return the nested lines in call order; rows below ``depth`` are folded, and multiply-adds are inclusive."""
    rows = [row for row in report.rows if depth is None or row.depth <= depth]
    parents = {row.parent for row in rows}
    layout = Layout(report, _shown_above(report, depth), _path_names(rows))
    lines = []
    for row in rows:
        below = _with_rows_below(report, row)
        counts = below[:1] if row.index in parents or depth is None else below
        name = row.class_name if row.kind == "function" or not row.var_name else f"{row.var_name} ({row.class_name})"
        lines.append(_line(below, counts, name, layout))
    return lines


def _line(work: Sequence[Row], counts: Sequence[Row], label: str, layout: Layout) -> Line:
    """Return the line of the first row of ``work``: the work of all of them, and the parameters of ``counts``."""
    row, memory, stands_for_others, mult_adds = work[0], layout.report.row_memory, False, 0
    unknown: Counter[str] = Counter()
    for inner in work:
        mult_adds += inner.own_mult_adds
        unknown.update(dict(inner.own_unknown_ops))
        if inner is not row and layout.home[inner.index] == row.index:
            has_params = inner.num_params or inner.unregistered_params or inner.uninitialised_params
            stands_for_others = stands_for_others or bool(has_params)
    num_params = trainable = active = param_bytes = unregistered = uninitialised = local_params = 0
    for inner in counts:
        num_params += inner.num_params
        trainable += inner.trainable_params
        active += inner.active_params
        param_bytes += inner.param_bytes
        unregistered += inner.unregistered_params
        uninitialised += inner.uninitialised_params
        local_params += memory[inner.index].local_params if memory else 0
    return Line(
        row, label, num_params, trainable, mult_adds, tuple(sorted(unknown.items())), stands_for_others,
        sum((memory[inner.index] for inner in work[1:]), memory[row.index]) if memory else None, local_params,
        active_params=active, param_bytes=param_bytes, unregistered_params=unregistered,
        uninitialised_params=uninitialised, layout=layout,
    )  # fmt: skip


def _shown_above(report: Report, depth: int | None) -> list[int]:
    """Return for each row the one whose line it is folded into."""
    home: list[int] = []
    for row in report.rows:
        is_deep = depth is not None and row.depth > depth and row.parent is not None
        home.append(home[row.parent or 0] if is_deep else row.index)
    return home


def _with_rows_below(report: Report, top: Row) -> list[Row]:
    """Return a row and all rows inside it."""
    below = {top.index: top}
    for row in report.rows[top.index + 1 :]:
        if row.parent not in below:
            break
        below[row.index] = row
    return list(below.values())


def _path_names(rows: Sequence[Row]) -> dict[int, str]:
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


STYLES: dict[str, Callable[[Report, int | None], list[Line]]] = {
    "torchsummary": flat_lines,
    "tree": tree_lines,
    "rich": tree_lines,
}
"""The lines of each style; "rich" is the tree, which a terminal shows in colour."""
