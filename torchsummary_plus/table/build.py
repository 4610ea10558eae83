"""A report -> its table, independent of format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..formats.table import Field, Table, TableRow
from .chosen import ALL_ROWS, RowView, folded, rows_note, shown_lines
from .columns import COLUMNS, Column, check_layout, chosen_names
from .lines import Line
from .rows import Report
from .totals import report_totals, unregistered_note, without_shape


def summary_table(
    report: Report,
    style: str = "torchsummary",
    depth: int | None = None,
    col_names: Iterable[str] | None = None,
    view: RowView = ALL_ROWS,
) -> Table:
    """Return a report's table in a style, with the chosen rows and columns and the totals.

    Raises :class:`InputError` for an unknown style, column or depth.
    """
    known = report.has_memory, report.is_sharded
    check_layout(style, depth)
    names = chosen_names(col_names, *known)
    if col_names is None and report.run.kind == "none":
        names = tuple([name for name in names if name != "output_size"])
    nested = style != "torchsummary"
    lines = shown_lines(report, style, depth, view)
    lazy, ran = without_shape(report), report.run.note
    notes = (
        rows_note(report, style, depth, view, lines),
        unregistered_note(report.unregistered),
        f"Not counted: {lazy}" if lazy else "",
        ran[:1].upper() + ran[1:],
    )
    rows = [_row(report, line, names, nested) for line in lines]
    if view.folds(style):
        cells = [[c.text for c, name in zip(r.cells, names) if name != "var_name"] for r in rows]
        places, lines = folded(lines, cells)
        rows = [replace(rows[place], label=line.label) for place, line in zip(places, lines)]
    return Table(
        title=report.rows[0].class_name,
        labels="Layer (type)",
        fields=tuple([column_field(name, COLUMNS[name], report) for name in names]),
        rows=tuple(rows),
        totals=report_totals(report),
        notes=tuple(filter(None, notes)),
        widest=view.width,
    )


def column_field(name: str, column: Column, report: Report) -> Field:
    """Return the field of a column of a report."""
    open_or_size = -1 if report.run.batch_size is None else report.run.batch_size
    batch = None if column.has_batch is None else open_or_size if column.has_batch else 0
    return Field(
        name, column.heading, column.unit, column.is_scaled, column.adds_up, width=column.flat_width, batch=batch
    )


def _row(report: Report, line: Line, names: Sequence[str], nested: bool) -> TableRow:
    row, zero = line.row, "--" if nested else "0"
    cells = [COLUMNS[name].cell(line, report, zero) for name in names]
    if nested and row.total_params and not line.num_params and not line.stands_for_others:
        inside = f"{row.total_params:,}"
        cells = [replace(c, inside=inside) if name == "num_params" else c for name, c in zip(names, cells)]
    return TableRow(line.label, row.path, row.depth if nested else 0, tuple(cells), type=row.class_name)
