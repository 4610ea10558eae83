"""Table: the data that every output format renders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Union

from ..data.units import mebibytes, one_line

Value = Union[int, float, str, None]  # A cell's value; None if there is none or it is unknown.
WIDEST = 60  # Maximum characters of a name or shape by default; HTML's columns are as wide.
ALIASES = {"params": "num_params", "macs": "mult_adds"}  # Other names of columns and figures.

FIGURE_FORMATS = {"ms": ",.3f", "%": ".1f"}  # How values are written, by unit; others in full.

UNITS_OF_VALUES = ("bytes", "elements", "mult-adds", "flops", "count", "ratio", "%", "ms", "")
"""Units of the values of a column; "" is text, which is left-aligned."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name in data, its printed heading, and the unit of its values, of ``UNITS_OF_VALUES``.

    ``width`` is the minimum width in torchsummary's style.
    ``scaled`` bytes are shown in a larger unit. In a column that ``adds_up``, a row excludes its children. ``batch`` is
    None unless the column has shapes: then their batch size, -1 if it is open, or 0 without a batch axis.
    """

    name: str
    heading: str
    unit: str = ""
    scaled: bool = False
    adds_up: bool = False
    width: int = 0
    batch: int | None = None

    def cell(self, value: Value, missing: str = "N/A") -> Cell:
        """Return a value as the column's cell: counts in full, scaled bytes in MiB, until a unit is asked for."""
        if isinstance(value, int | float):
            text = mebibytes(int(value)) if self.scaled else f"{value:{FIGURE_FORMATS.get(self.unit, ',')}}"
            return Cell(value, f"{text}%" if self.unit == "%" else text)
        return Cell(value, missing if value is None else value)


@dataclass(frozen=True, slots=True)
class Cell:
    """A value and its text; the value is None if there is none or it is unknown. ``best`` cells are highlighted.

    ``data`` is the value for data frames if it is not a plain one: a shape as a tuple. ``inside`` is what the rows
    inside add up to, which formats with colours show in grey in place of the text.
    """

    value: Value
    text: str
    best: bool = False
    data: object = None
    inside: str = ""


def cells(fields: Iterable[Field], values: Iterable[Value]) -> tuple[Cell, ...]:
    """Return the cells of a row by the row's values."""
    return tuple(field.cell(value) for field, value in zip(fields, values))


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: its label, its module's path, its level of nesting (0 is the outermost), and a cell per field.

    In a table with a row per figure, ``figure`` has the name and unit of the row, and the path is that name. ``type``
    is the class of the module that a row is of.
    """

    label: str
    path: str
    level: int
    cells: tuple[Cell, ...]
    figure: Field | None = None
    type: str = ""


@dataclass(frozen=True, slots=True)
class Total:
    """A total: its field and its value."""

    field: Field
    cell: Cell

    @property
    def text(self) -> str:
        """The total as a line."""
        return f"{self.field.heading}: {self.cell.text}"


@dataclass(frozen=True, slots=True)
class Table:
    """Fields, rows, totals and notes. ``labels`` is the heading of the label column.

    ``settings`` are conditions of the figures that only the title mentions; ``answer`` is the sentence that a reader
    wants first, ``unit`` that of scaled bytes unless another is asked for.
    """

    title: str
    labels: str
    fields: tuple[Field, ...]
    rows: tuple[TableRow, ...]
    totals: tuple[Total, ...] = ()
    notes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    widest: int = WIDEST
    """Maximum characters of a cell without a unit, and of a label if set, in formats that cannot show the rest."""
    answer: str = ""
    unit: str = "MiB"

    @property
    def label_name(self) -> str:
        """The name of the first column: "layer", "module", "kind", "figure"."""
        return self.labels.split()[0].lower() if self.labels else ""


def on_lines(table: Table) -> Table:
    """Return a table for a plain text: each title, heading, label, cell, total and note is on one line."""
    rows, totals = [], []
    for row in table.rows:
        texts = row.label + "".join([cell.text for cell in row.cells])
        if one_line(texts) is not texts:  # As few rows have.
            cells = [replace(cell, text=one_line(cell.text)) for cell in row.cells]
            row = replace(row, label=one_line(row.label), cells=tuple(cells))
        rows.append(row)
    for total in table.totals:
        field = replace(total.field, heading=one_line(total.field.heading))
        totals.append(Total(field, replace(total.cell, text=one_line(total.cell.text))))
    return replace(
        table, title=one_line(table.title), answer=one_line(table.answer), rows=tuple(rows), totals=tuple(totals),
        fields=tuple([replace(field, heading=one_line(field.heading)) for field in table.fields]),
        notes=tuple(map(one_line, table.notes)),
    )  # fmt: skip


def with_short_cells(table: Table) -> Table:
    """Return a table with text cells, and labels if a width was requested, shortened; numbers stay whole."""
    rows, most = [], table.widest
    for row in table.rows:
        if len(row.label) > most or max([len(cell.text) for cell in row.cells], default=0) > most:  # As few rows are.
            whole = (field.unit or row.figure for field in table.fields)
            own = [c if w else replace(c, text=shortened(c.text, most)) for w, c in zip(whole, row.cells)]
            label = row.label if most == WIDEST else shortened(row.label, most)
            row = replace(row, label=label, cells=tuple(own))
        rows.append(row)
    return replace(table, rows=tuple(rows))


def shortened(text: str, width: int) -> str:
    """Return text of at most ``width`` characters, ending in three dots if it was longer.

    >>> shortened("[[-1, 1024, 768], [-1, 12, 1024, 64]]", 20)
    '[[-1, 1024, 768],...'
    """
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def guides(levels: Sequence[int]) -> list[str]:
    """Return the tree branches in front of each row, for rows in pre-order.

    >>> guides([0, 1, 2, 1])
    ['', '├─', '│ └─', '└─']
    """
    open_below: set[int] = set()
    trunks = []
    for level in reversed(levels):
        open_below = {other for other in open_below if other <= level}
        trunk = "".join("│ " if other in open_below else "  " for other in range(1, level))
        trunks.append(trunk + ("├─" if level in open_below else "└─") if level else "")
        open_below.add(level)
    return trunks[::-1]
