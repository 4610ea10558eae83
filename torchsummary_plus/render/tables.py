"""A report -> its table, independent of format."""

from __future__ import annotations

from collections.abc import Iterable

from ..report.report import Report
from .columns import COLUMNS, Column, check_view, chosen_names
from .lines import STYLES, Line
from .table import Cell, Field, Table, TableRow
from .totals import report_totals


def summary_table(
    report: Report, style: str = "torchsummary", depth: int | None = None, col_names: Iterable[str] | None = None
) -> Table:
    """Return a report's table in a style, with the chosen columns and the totals.

    Raises :class:`InputError` for an unknown style, column or depth.
    """
    with_memory = bool(report.row_memory)
    check_view(style, depth, col_names, with_memory)
    names = chosen_names(col_names, with_memory)
    nested = style == "tree"
    return Table(
        title=report.rows[0].class_name,
        labels="Layer (type)",
        fields=tuple(_field(name, COLUMNS[name]) for name in names),
        rows=tuple(_row(report, line, names, nested) for line in STYLES[style](report, depth)),
        totals=report_totals(report),
    )


def _field(name: str, column: Column) -> Field:
    return Field(name, column.heading, column.unit, adds_up=column.adds_up, width=column.flat_width)


def _row(report: Report, line: Line, names: Iterable[str], nested: bool) -> TableRow:
    row, zero = line.row, "--" if nested else "0"
    cells = tuple(Cell(COLUMNS[name].value(line, report), COLUMNS[name].cell(line, report, zero)) for name in names)
    return TableRow(line.label, row.path, row.depth if nested else 0, cells)
