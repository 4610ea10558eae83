"""A table without a look: what every format is drawn from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

from ..units import in_unit

Value = Union[int, float, str, None]
"""What a cell holds as data; None where there is nothing, or nobody knows."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name in data, its heading in print, and the unit of its values.

    The unit is "bytes", "elements", "mult-adds", "count", "ratio" or "%"; it is "" for words, which stand on the left
    of their column. Bytes that are ``scaled`` are shown in a larger unit, the others as they are. Where a column
    ``adds_up`` a row leaves out what the rows inside it have.
    """

    name: str
    heading: str
    unit: str = ""
    scaled: bool = False
    adds_up: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure as data and as it reads; no value where there is none, or nobody knows. The ``best`` ones stand out."""

    value: Value
    text: str
    best: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line: its label, the path of its module, how deep it is nested (0: the outermost), a cell for each field.

    In a table of figures, a line for each, ``figure`` is the unit of its cells, and its name stands for the path.
    """

    label: str
    path: str
    level: int
    cells: tuple[Cell, ...]
    figure: Field | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """A figure of the whole: its name in data, its label in print."""

    field: Field
    cell: Cell


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under fields, and the totals. ``labels`` heads the column of the rows' labels.

    ``settings`` are what the figures depend on, as far as the title alone tells it.
    """

    title: str
    labels: str
    fields: tuple[Field, ...]
    rows: tuple[TableRow, ...]
    totals: tuple[Total, ...] = ()
    notes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


def with_units(table: Table, units: str) -> Table:
    """A table whose scaled bytes are shown in some unit, which their headings then name; "auto" names it in each cell.

    >>> size = Total(Field("param_bytes", "Params size", "bytes", scaled=True), Cell(2_097_152, "2.00"))
    >>> [(t.field.heading, t.cell.text) for t in with_units(Table("", "", (), (), (size,)), "MiB").totals]
    [('Params size (MiB)', '2.00')]
    """
    rows = table.rows
    if any(field.scaled for field in table.fields):
        rows = tuple(
            replace(row, cells=tuple(_shown(field, cell, units) for field, cell in zip(table.fields, row.cells)))
            for row in rows
        )
    rows = tuple(row if row.figure is None else _figure_shown(row, row.figure, units) for row in rows)
    totals = tuple(total_with_unit(total, units) for total in table.totals)
    return replace(table, fields=tuple(_headed(field, units) for field in table.fields), rows=rows, totals=totals)


def total_with_unit(total: Total, units: str) -> Total:
    """A total whose scaled bytes are shown in some unit."""
    return Total(_headed(total.field, units), _shown(total.field, total.cell, units))


def _figure_shown(row: TableRow, figure: Field, units: str) -> TableRow:
    cells = tuple(_shown(figure, cell, units) for cell in row.cells)
    return replace(row, label=_headed(figure, units).heading, cells=cells)


def _headed(field: Field, units: str) -> Field:
    return replace(field, heading=f"{field.heading} ({units})") if field.scaled and units != "auto" else field


def _shown(field: Field, cell: Cell, units: str) -> Cell:
    if not field.scaled or not isinstance(cell.value, int):
        return cell
    figure, unit = in_unit(cell.value, units)
    return replace(cell, text=f"{figure} {unit}" if units == "auto" else figure)
