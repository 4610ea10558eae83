"""A report -> the table as plain text, drawn by tabulate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

from tabulate import TableFormat, tabulate

from ..data.units import in_unit, one_line
from ..report.report import Report
from .columns import COLUMNS, Column, check_view, chosen_columns
from .lines import Line
from .rows import ALL_ROWS, RowView, folded, folded_lines, rows_note, shown_lines
from .table import Table, Total, short_label, shortened, total_with_unit, with_short_cells
from .totals import report_totals

FLAT_WIDTH = 64
"""The minimum width of torchsummary's table."""

NAME_WIDTH = 20
"""The minimum width of torchsummary's first column."""

VAR_NAME = COLUMNS["var_name"]
"""The column in which equal neighbours differ."""


def render(
    report: Report,
    style: str = "torchsummary",
    depth: int | None = None,
    col_names: Iterable[str] | None = None,
    units: str | None = None,
    view: RowView = ALL_ROWS,
) -> str:
    """Return the table with its totals, without a trailing newline.

    ``depth`` is the deepest level shown (the root is 0); nested repeats are folded unless ``view`` shows them. Without
    ``units``, an MB is 1024 x 1024 bytes, as in torchsummary. Raises :class:`InputError` for an unknown style, column,
    depth or row.
    """
    with_memory = bool(report.row_memory)
    check_view(style, depth, col_names, with_memory)
    columns = chosen_columns(col_names, with_memory)
    lines = shown_lines(report, style, depth, view)
    note = rows_note(report, style, depth, view, lines)
    flat = style == "torchsummary"
    zero = "0" if flat else "--"
    cells = [[_cell(column, line, report, zero, units) for column in columns] for line in lines]
    if not flat and view.repeats != "show":
        repeats = folded(lines, [[c for c, column in zip(own, columns) if column is not VAR_NAME] for own in cells])
        lines, cells = folded_lines(lines, repeats), [cells[one.place] for one in repeats]
    cells = [
        [view.guide(line) + short_label(one_line(line.label), view.width), *_cut(own, columns, view.width)]
        for line, own in zip(lines, cells)
    ]
    draw = _flat if flat else _tree
    return draw(report, ["Layer (type)", *(_heading(column, units) for column in columns)], cells, columns, units, note)


def _cell(column: Column, line: Line, report: Report, zero: str, units: str | None) -> str:
    """Return the text of a cell; bytes of a step in the unit of the totals."""
    value = column.value(line, report) if column.of_memory else None
    if not isinstance(value, int) or not value:
        return column.cell(line, report, zero)
    figure, unit = in_unit(value, units or "MiB")
    return f"{figure} {unit}" if units == "auto" else figure


def _heading(column: Column, units: str | None) -> str:
    return f"{column.heading} ({units or 'MB'})" if column.of_memory and units != "auto" else column.heading


def _cut(cells: Iterable[str], columns: Iterable[Column], width: int) -> list[str]:
    """Return cells with words and shapes of at most ``width`` characters; numbers stay whole."""
    return [cell if column.unit else shortened(cell, width) for cell, column in zip(cells, columns)]


def table_text(table: Table) -> str:
    """Return any table as text: title, indented rows, totals and notes; * marks the best values."""
    table = with_short_cells(table)
    headings = [table.labels, *(field.heading for field in table.fields)]
    cells = [
        ["  " * row.level + one_line(row.label), *("*" * cell.best + one_line(cell.text) for cell in row.cells)]
        for row in table.rows
    ]
    widths = _widths([headings, *cells], [0] * len(headings))
    width = len(_tree_row([""] * len(widths), widths))
    after = [f"{total.field.heading}: {total.cell.text}" for total in table.totals] + list(table.notes)
    below = ["\n".join([*after, "-" * width])] if after else []
    return "\n".join([one_line(table.title), _ruled(headings, cells, widths, width, _tree_row), *below])


def _flat(
    report: Report, headings: list[str], cells: list[list[str]], columns: Sequence[Column], units: str | None, note: str
) -> str:
    """Return torchsummary's table: right-aligned columns of its minimum widths, two spaces after the first one.

    Its rules are one dash wider than its lines: 64 for columns of 20, 25 and 15. It has no line for buffers.
    """
    widths = _widths([headings, *cells], [NAME_WIDTH, *(column.flat_width for column in columns)])
    width = max(FLAT_WIDTH, len(_flat_row([""] * len(widths), widths)) + 1)
    table = _ruled(headings, cells, widths, width, _flat_row)
    left_out = {"buffer_bytes"} if "Mult-Adds" in headings else {"buffer_bytes", "total_mult_adds"}
    return _with_totals(table, report, left_out, width, units, note)


def _flat_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (cell.strip().rjust(width) for cell, width in zip(cells, widths))
    return f"{first}  {' '.join(others)}" if others else first


def _tree(
    report: Report, headings: list[str], cells: list[list[str]], columns: Sequence[Column], units: str | None, note: str
) -> str:
    """Return the nested table: names with their branches left-aligned, other columns right-aligned."""
    widths = _widths([headings, *cells], [0] * len(headings))
    width = len(_tree_row([""] * len(widths), widths))
    return _with_totals(_ruled(headings, cells, widths, width, _tree_row), report, set(), width, units, note)


def _tree_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = cells
    right = (cell.strip().rjust(width) for cell, width in zip(others, widths[1:]))
    return "  ".join([first.rstrip().ljust(widths[0]), *right])


def _widths(lines: Sequence[Sequence[str]], least: Sequence[int]) -> list[int]:
    return [max(w, *(len(line[i]) for line in lines)) for i, w in enumerate(least)]


def _ruled(
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    widths: Sequence[int],
    width: int,
    row: Callable[[Sequence[str], Sequence[int]], str],
) -> str:
    """Return the cells below their headings, with torchsummary's rules."""

    def draw(values: Sequence[str], *_: object) -> str:
        return row(values, widths)

    style = TableFormat(
        lineabove=lambda *_: "-" * width,
        linebelowheader=lambda *_: "=" * width,
        linebetweenrows=None,
        linebelow=lambda *_: "=" * width,
        headerrow=draw,
        datarow=draw,
        padding=0,
        with_header_hide=None,
    )
    table: str = tabulate(cells, headings, tablefmt=style, disable_numparse=True, stralign=None)
    return table


def _with_totals(table: str, report: Report, left_out: Set[str], width: int, units: str | None, note: str) -> str:
    """Return the table followed by a note, if there is one, the counts and the sizes, separated by rules."""
    totals = [total for total in report_totals(report) if total.field.name not in left_out]
    counts = [_total(total, units) for total in totals if not total.field.scaled]
    sizes = [_total(total, units) for total in totals if total.field.scaled]
    return "\n".join([table, *([note] if note else []), *counts, "-" * width, *sizes, "-" * width])


def _total(total: Total, units: str | None) -> str:
    """Return a total as a line; without ``units``, an MB is 1024 x 1024 bytes, as in torchsummary."""
    if units is None:
        return f"{total.field.heading}{' (MB)' if total.field.scaled else ''}: {total.cell.text}"
    shown = total_with_unit(total, units)
    return f"{shown.field.heading}: {shown.cell.text}"
