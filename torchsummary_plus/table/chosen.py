"""Which lines of a table are shown: chosen by type, name or range, with repeats folded into one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from ..data.arguments import integer
from ..data.errors import InputError, choice_error
from ..data.units import describe
from ..formats.table import WIDEST
from .lines import STYLES, Line
from .rows import Report

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

    @property
    def is_ascii(self) -> bool:
        """Whether the tree's branches are drawn in ASCII."""
        return "ascii_only" in self.settings

    def folds(self, style: str) -> bool:
        """Return whether repeats print as one."""
        return style != "torchsummary" and self.repeats == "fold"


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


def shown_lines(report: Report, style: str, depth: int | None, view: RowView) -> list[Line]:
    """Return the lines of a style that a view shows, with their labels. Raises :class:`InputError` if there are none.

    In a nested style, the modules around a chosen row are kept.
    """
    lines = STYLES[style](report, depth)
    nested = style != "torchsummary"
    if "hide_recursive_layers" in view.settings:
        hidden = _recursive(report)
        lines = [line for line in lines if line.row.index not in hidden]
    if view.rows is not None:
        lines = _with_parents(lines, _chosen(lines, view.rows)) if nested else _chosen(lines, view.rows)
    if nested and "depth" in view.settings:
        lines = _numbered(lines)
    return lines


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


def rows_note(report: Report, style: str, depth: int | None, view: RowView, lines: Sequence[Line]) -> str:
    """Return the note that rows are left out; "" if all are shown."""
    if view.rows is None and "hide_recursive_layers" not in view.settings:
        return ""
    return f"Rows shown: {len(lines):,} of {len(STYLES[style](report, depth)):,}"


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
    return [
        place
        for place, line in enumerate(lines)
        if any(
            fnmatchcase(name, pattern) for name in (line.row.class_name, line.row.path, line.row.var_name, line.label)
        )
    ]


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
    above = {line.row.index: line.row.parent for line in lines}
    with_parents: set[int] = set()
    for line in chosen:
        index: int | None = line.row.index
        while index is not None and index not in with_parents:
            with_parents.add(index)
            index = above.get(index)
    return [line for line in lines if line.row.index in with_parents]


def _numbered(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with torchinfo's "depth-number" after each name."""
    counts: dict[int, int] = {}
    numbered = []
    for line in lines:
        depth = line.row.depth
        counts[depth] = counts.get(depth, 0) + 1
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
