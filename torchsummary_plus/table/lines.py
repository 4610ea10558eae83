"""A report -> the lines of a table in one style: in which order, what is folded into them, and which are shown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Any

from ..data.arguments import integer
from ..data.errors import InputError, choice_error
from ..data.memory_records import RowMemory
from ..data.units import describe
from ..formats.table import WIDEST
from .rows import Report, Row, flat_rows, when_finished


@dataclass(frozen=True, eq=False)
class Layout:
    """What the lines of a table share: the report, for each row the one whose line it is folded into, the lines' names.

    Names are by row.
    """

    report: Report
    home: Sequence[int]
    names: Mapping[int, str]


def _total(name: str, about: str) -> property:
    """Return the property of a line that adds up a figure of the rows whose parameters it counts."""

    def total(line: Line) -> int:
        return sum(map(attrgetter(name), line.counts))

    return property(total, doc=about)


@dataclass(slots=True)
class Line:
    """One line of a table. The parameters of all lines add up to the total, in every style and at every depth.

    It has the work of the rows ``work``, its own first, and the parameters of ``counts``. A line that stands for
    ``times`` equal neighbours has the figures of one of them.
    """

    row: Row
    label: str
    work: Sequence[Row]
    counts: Sequence[Row]
    mult_adds: int
    layout: Layout = field(compare=False, repr=False)
    times: int = 1

    num_params = _total("num_params", "The elements of the parameters that no other line counts.")
    trainable_params = _total("trainable_params", "The elements of ``num_params`` that are trained.")
    active_params = _total("active_params", "The elements of ``num_params`` that one token uses.")
    param_bytes = _total("param_bytes", "The stored bytes of ``num_params``.")
    unregistered_params = _total("unregistered_params", "The elements that ``model.parameters()`` does not list.")
    uninitialised_params = _total("uninitialised_params", "How many parameters have no shape yet, which no count has.")

    @property
    def unknown_ops(self) -> tuple[tuple[str, int], ...]:
        """The operators without a formula for multiply-adds, each with its number of calls."""
        unknown: Counter[str] = Counter()
        for row in self.work:
            unknown.update(dict(row.own_unknown_ops))
        return tuple(sorted(unknown.items()))

    @property
    def stands_for_others(self) -> bool:
        """Whether rows with parameters are folded into it."""
        folded = [row for row in self.work[1:] if self.layout.home[row.index] == self.row.index]
        return any(row.num_params or row.unregistered_params or row.uninitialised_params for row in folded)

    @property
    def memory(self) -> RowMemory | None:
        """The memory of its work; None without that of a step or of a rank."""
        memory, (first, *others) = self.layout.report.row_memory, self.work
        return sum((memory[row.index] for row in others), memory[first.index]) if memory else None

    @property
    def local_params(self) -> int:
        """The elements of ``num_params`` that one rank has; 0 unless the memory is that of one rank."""
        memory = self.layout.report.row_memory
        return sum([memory[row.index].local_params for row in self.counts]) if memory else 0


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
            own = work[row.index]
            mult_adds = sum(map(attrgetter("own_mult_adds"), own))
            lines.append(Line(row, label, own, counts[row.index], mult_adds, layout))
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
        lines.append(Line(row, name, below, counts, row.mult_adds, layout))
    return lines


def _shown_above(report: Report, depth: int | None) -> list[int]:
    """Return for each row the one whose line it is folded into."""
    home = list(range(len(report.rows)))
    if depth is not None:
        for row in report.rows:
            if row.depth > depth and row.parent is not None:
                home[row.index] = home[row.parent]
    return home


def _with_rows_below(report: Report, top: Row) -> list[Row]:
    """Return a row and all rows inside it."""
    return [top, *takewhile(lambda row: row.depth > top.depth, report.rows[top.index + 1 :])]


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

REPEATS = ("fold", "show")

SETTINGS = ("var_names", "depth", "ascii_only", "hide_recursive_layers")
"""torchinfo's ``row_settings``."""

NESTED = ("var_names", "depth")
"""The settings of nested rows."""

NARROWEST = 8
"""Minimum ``col_width``."""


@dataclass(frozen=True, slots=True)
class RowView:
    """Which rows a table shows: ``rows`` are patterns and ranges, ``settings`` are torchinfo's ``row_settings``.

    ``repeats`` is "fold", "show", or None for the format's own; ``width`` the most characters of a name or shape.
    """

    rows: tuple[str, ...] | None = None
    repeats: str | None = None
    settings: tuple[str, ...] = ()
    width: int = WIDEST

    def style_of(self, style: str) -> str:
        """Return the style: settings of nested rows imply the tree. Raises :class:`InputError`."""
        if style == "torchsummary" and self.repeats == "fold":
            raise InputError('repeats="fold" folds nested rows only; pass style="tree" too')
        return "tree" if style == "torchsummary" and set(self.settings) & set(NESTED) else style


ALL_ROWS = RowView()


def row_view(
    rows: Any = None,
    repeats: str | None = None,
    row_settings: Iterable[str] | str | None = None,
    col_width: int | None = None,
) -> RowView:
    """Return the view that arguments of ``summary`` ask for. Raises :class:`InputError`.

    >>> row_view(range(3, 9), row_settings=["depth"]).rows
    ('3:9',)
    """
    if repeats not in (None, *REPEATS):
        raise choice_error("repeats", repeats, [None, *REPEATS])
    width = WIDEST if col_width is None else integer("col_width", col_width, NARROWEST)
    requested = (row_settings,) if isinstance(row_settings, str) else tuple(row_settings or ())
    settings = []
    for setting in requested:
        settings.append(str(getattr(setting, "value", setting)))
        if settings[-1] not in SETTINGS:
            raise choice_error("row_settings", settings[-1], SETTINGS)
    many = rows if isinstance(rows, (list, tuple, set, frozenset)) else [rows]
    if not many:
        raise InputError("rows is empty; accepted: None for all, a type, a name, a pattern, or a range")
    return RowView(None if rows is None else tuple(map(_pattern, many)), repeats, tuple(settings), width)


def _pattern(pattern: Any) -> str:
    """Return a pattern as text, and a range as "first:last" with numbers or names."""
    if isinstance(pattern, range) and pattern.step == 1:
        return f"{pattern.start}:{pattern.stop}"
    if isinstance(pattern, slice) and pattern.step in (None, 1):
        return f"{'' if pattern.start is None else pattern.start}:{'' if pattern.stop is None else pattern.stop}"
    if isinstance(pattern, type):
        return pattern.__name__
    if isinstance(pattern, str) and pattern:
        return pattern
    raise InputError(
        f'rows contains {describe(pattern)}; accepted: a type ("Conv2d"), a path or pattern ("layer1.*"), '
        "range(10, 20), "
        'or "layer1:layer2"'
    )


def shown_lines(report: Report, style: str, depth: int | None, view: RowView) -> tuple[list[Line], str]:
    """Return the lines of a style that a view shows, with their labels, and a note if others are left out.

    In a nested style, the modules around a chosen row are kept. Raises :class:`InputError` if there are none.
    """
    lines = STYLES[style](report, depth)
    whole, nested = len(lines), style != "torchsummary"
    if "hide_recursive_layers" in view.settings:
        hidden = _recursive(report)
        lines = [line for line in lines if line.row.index not in hidden]
    if view.rows is not None:
        lines = _with_parents(lines, _chosen(lines, view.rows)) if nested else _chosen(lines, view.rows)
    if nested and "depth" in view.settings:
        lines = _numbered(lines)
    is_part = view.rows is not None or "hide_recursive_layers" in view.settings
    return lines, f"Rows shown: {len(lines):,} of {whole:,}" if is_part else ""


def _recursive(report: Report) -> set[int]:
    """Return the rows of calls that have parameters, all of them counted in an earlier call, and the rows inside."""
    counted_before = {row.index for row in report.rows if row.repeated}
    for row in reversed(report.rows):
        if row.index in counted_before and row.parent is not None:
            counted_before.add(row.parent)
    hidden: set[int] = set()
    seen: set[str] = set()
    for row in report.rows:
        again = row.index in counted_before and row.total_params == 0 and (row.repeated or row.path in seen)
        if again or row.parent in hidden:
            hidden.add(row.index)
        seen.add(row.path)
    return hidden


def _chosen(lines: Sequence[Line], patterns: Iterable[str]) -> list[Line]:
    """Return the lines that match any pattern or range, in order. Raises :class:`InputError` if one matches none."""
    chosen: set[int] = set()
    for pattern in patterns:
        matches = _range(lines, pattern) if ":" in pattern else _matching(lines, pattern)
        if not matches:
            types = ", ".join(dict.fromkeys(line.row.class_name for line in lines))
            raise InputError(
                f"rows is {describe(pattern)}, which matches no row; types here: {types}; paths such as "
                "'layer1.*' also work"
            )
        chosen.update(matches)
    return [line for place, line in enumerate(lines) if place in chosen]


def _matching(lines: Sequence[Line], pattern: str) -> list[int]:
    """Return the positions of lines whose type, path, last name or label matches a pattern."""
    names = [(line.row.class_name, line.row.path, line.row.var_name, line.label) for line in lines]
    return [place for place, own in enumerate(names) if any(fnmatchcase(name, pattern) for name in own)]


def _range(lines: Sequence[Line], text: str) -> list[int]:
    """Return the positions in a range: numbers as in Python slices, names from the first to the last match."""
    first, _, last = text.partition(":")
    if all(part == "" or part.lstrip("-").isdigit() for part in (first, last)):
        return list(range(len(lines)))[slice(int(first) if first else None, int(last) if last else None)]
    starts = _matching(lines, first) if first else [0]
    inside = (*_matching(lines, last), *_matching(lines, f"{last}.*")) if last else [len(lines) - 1]
    return list(range(min(starts), max(inside) + 1)) if starts and inside else []


def _with_parents(lines: Sequence[Line], chosen: Sequence[Line]) -> list[Line]:
    """Return the chosen lines and every line above one, in order."""
    kept: set[int | None] = {line.row.index for line in chosen}
    for line in reversed(lines):  # Rows inside another follow it.
        if line.row.index in kept:
            kept.add(line.row.parent)
    return [line for line in lines if line.row.index in kept]


def _numbered(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with torchinfo's "depth-number" after each name."""
    counts: Counter[int] = Counter()
    numbered = []
    for line in lines:
        depth = line.row.depth
        counts[depth] += 1
        numbered.append(replace(line, label=f"{line.label}: {depth}-{counts[depth]}" if depth else line.label))
    return numbered


def folded(lines: Sequence[Line], cells: Sequence[Sequence[str]]) -> tuple[list[int], list[Line]]:
    """Merge equal neighbours into one line, with their number in its label; return the lines that stay, and these.

    Neighbours are equal if their type, work and cells are the same, and those of all rows inside them, matched by name.
    """
    inside: dict[int | None, list[int]] = {}
    for place, line in enumerate(lines):
        inside.setdefault(line.row.parent if place else None, []).append(place)
    seen: dict[Hashable, int] = {}
    alike = [0] * len(lines)
    for place in reversed(range(len(lines))):
        row = lines[place].row
        within = tuple((lines[inner].row.var_name, alike[inner]) for inner in inside.get(row.index, ()))
        work = (row.total_params, row.trainable_params, row.mult_adds, row.kernel_size, row.groups)
        look = (row.class_name, row.kind, *work, *cells[place], within)
        alike[place] = seen.setdefault(look, len(seen))
    merged: dict[int, Line] = {}
    stack = [[0]] if lines else []
    while stack:
        for _, equal in groupby(stack.pop(), key=alike.__getitem__):
            run = list(equal)
            line = merged[run[0]] = lines[run[0]]
            if len(run) > 1:  # Labelled with the first and the last name: "0 to 11 (Block) x 12".
                row, last, label = line.row, lines[run[-1]].row.var_name, line.label
                if last and last != row.var_name and row.kind != "function":
                    label = label.replace(row.var_name, f"{row.var_name} to {last}", 1)
                merged[run[0]] = replace(line, label=f"{label} x {len(run):,}", times=len(run))
            if line.row.index in inside:
                stack.append(inside[line.row.index])
    places = sorted(merged)
    return places, [merged[place] for place in places]
