"""Table: the data that every output format renders, and how its figures are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from ..data.arguments import integer
from ..data.errors import InputError, choice_error
from ..data.units import BYTE_UNITS, COUNT_UNITS, OLD_MB, UNITS, describe, in_unit, mebibytes, one_line

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


@dataclass(slots=True)
class Cell:
    """A value and its text; the value is None if there is none or it is unknown. ``best`` cells are highlighted.

    ``data`` is the value for data frames if it is not a plain one: a shape as a tuple. ``inside`` is what the rows
    inside add up to, which formats with colours show in grey in place of the text. Like rows, cells are not frozen: a
    table makes many.
    """

    value: Value
    text: str
    best: bool = False
    data: object = None
    inside: str = ""


def cells(fields: Iterable[Field], values: Iterable[Value]) -> tuple[Cell, ...]:
    """Return the cells of a row by the row's values."""
    return tuple(field.cell(value) for field, value in zip(fields, values))


@dataclass(slots=True)
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


def for_text(table: Table) -> Table:
    """Return a table with each text on one line; those of cells, and labels if a width was requested, are shortened."""
    rows, totals, most = [], [], table.widest
    for row in table.rows:
        texts = row.label + "".join([cell.text for cell in row.cells])
        if one_line(texts) is not texts:  # As few rows have.
            cells = [replace(cell, text=one_line(cell.text)) for cell in row.cells]
            row = replace(row, label=one_line(row.label), cells=tuple(cells))
        if len(row.label) > most or max([len(cell.text) for cell in row.cells], default=0) > most:  # As few rows are.
            whole = (field.unit or row.figure for field in table.fields)  # Numbers stay whole.
            own = [c if w else replace(c, text=shortened(c.text, most)) for w, c in zip(whole, row.cells)]
            label = row.label if most == WIDEST else shortened(row.label, most)
            row = replace(row, label=label, cells=tuple(own))
        rows.append(row)
    for total in table.totals:
        field = replace(total.field, heading=one_line(total.field.heading))
        totals.append(Total(field, replace(total.cell, text=one_line(total.cell.text))))
    return replace(
        table, title=one_line(table.title), answer=one_line(table.answer), rows=tuple(rows), totals=tuple(totals),
        fields=tuple([replace(field, heading=one_line(field.heading)) for field in table.fields]),
        notes=tuple(map(one_line, table.notes)),
    )  # fmt: skip


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


# How figures are written: their units, decimals and headings, as FLOPs, and shapes. Results hold plain numbers, and a
# table's cells are texts: every format for people passes its tables through :func:`written` once.

FIGURES = {"elements": "params", "mult-adds": "mult_adds", "flops": "mult_adds", "bytes": "bytes"}
"""The key of ``units=`` for the values of a column, by their unit."""

SHAPES = ("sample", "channels_last")

COUNT = re.compile(r"^(?:\([\d,]+\)(?: |$))?(?:(?:>=)?[\d,]+(?:\.\d+)?)?")
"""A count at the start of a cell, with the parameters in parentheses that no module registers; words may follow."""

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

AXES = re.compile(r"\[(-?\d+(?:, -?\d+)*)\]")  # A shape in a cell.

FLOPS_NOTE = "FLOPs: 2 x multiply-adds"


@dataclass(frozen=True, slots=True)
class CellStyle:
    """How figures are written.

    ``sizes`` is the unit of totals and memory in bytes; None is the table's own.
    ``units`` replace it, and the full numbers of other columns, by figure: "params", "mult_adds" and "bytes".
    """

    sizes: str | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    digits: int | None = None
    titles: Mapping[str, str] = field(default_factory=dict)
    flops: bool = False
    shapes: str | None = None

    def unit(self, column: Field) -> str:
        """Return the unit that the values of a column are written in; "" for numbers in full."""
        key = FIGURES.get(column.unit, "")
        return self.units.get(key, self.sizes or "" if column.scaled else "")


def cell_style(
    units: str | Mapping[str, str] | None = None, digits: int | None = None, titles: Mapping[str, str] | None = None,
    flops: bool = False, shapes: str | None = None,
) -> CellStyle:  # fmt: skip
    """Return the style that a view's options ask for. Raises :class:`InputError`."""
    if isinstance(units, str) and units not in UNITS:
        raise choice_error("units", units, UNITS)
    if not isinstance(units, str | Mapping | None):
        raise InputError(f'units is {describe(units)}; accepted: {", ".join(map(repr, UNITS))}, or {{"params": "M"}}')
    by_figure = units if isinstance(units, Mapping) else {}
    chosen = {}
    for name, unit in by_figure.items():
        key = {"macs": "mult_adds", "flops": "mult_adds"}.get(name, name)
        accepted = [*filter(None, BYTE_UNITS if key == "bytes" else COUNT_UNITS), "auto"]
        if key not in FIGURES.values():
            raise choice_error("the figure of units", name, dict.fromkeys(FIGURES.values()))
        if unit not in accepted:
            raise choice_error(f"units[{name!r}]", unit, accepted)
        chosen[key] = unit
    if shapes not in (None, *SHAPES):
        raise choice_error("shapes", shapes, [None, *SHAPES])
    if not isinstance(titles, Mapping | None):
        raise InputError(f'titles is {describe(titles)}; accepted: headings by name: {{"num_params": "Size"}}')
    decimals = None if digits is None else integer("digits", digits, 0)
    return CellStyle(None if isinstance(units, Mapping) else units, chosen, decimals, titles or {}, flops, shapes)


def written(tables: Iterable[Table], style: CellStyle) -> tuple[Table, ...]:
    """Return tables as a style writes them. Raises :class:`InputError` for a title of no column, total or figure."""
    tables = tuple(tables)
    if style.titles:
        names = dict.fromkeys(name for table in tables for name in _names(table))
        for title in style.titles:
            if not meant(title, names):
                raise choice_error("the column of titles", title, names)
    return tuple([_written(table, style) for table in tables])


def meant(name: str, names: Iterable[str]) -> str:
    """Return the one of these columns, totals or figures that a name means; "" if it is none of them.

    >>> meant("params", ["total_params"]), meant("macs", ["mult_adds"]), meant("training_peak", ["training_peak_bytes"])
    ('total_params', 'mult_adds', 'training_peak_bytes')
    """
    names = list(names)
    words = [name, ALIASES.get(name, name)]
    words += [longer for word in words for longer in (f"total_{word}", f"{word}_bytes")]
    return next((word for word in words if word in names), "")


def _names(table: Table) -> list[str]:
    """Return the names that ``titles`` may use: of the columns, the first one too, of the totals and of the figures."""
    columns = [table.label_name, *map(_column_name, table.fields)]
    figures = [row.figure.name for row in table.rows if row.figure is not None]
    return [*columns, *figures, *(total.field.name for total in table.totals)]


def _column_name(column: Field) -> str:
    return column.name.rpartition(".")[2]  # In a comparison, the name of its model precedes it.


def _written(table: Table, style: CellStyle) -> Table:
    style = replace(style, sizes=style.sizes or table.unit)
    titles: dict[str, str] = {}
    if style.titles:
        names = _names(table)
        titles = {meant(name, names): title for name, title in style.titles.items() if meant(name, names)}
    rows = []
    for row in table.rows:
        label, columns = row.label, table.fields
        if row.figure is not None:  # Its cells are written as the figure, except for ratios.
            label = _headed(row.figure, style, titles).heading
            columns = tuple([field if field.unit == "ratio" else row.figure for field in table.fields])
        own = tuple([_cell(cell, column, style) for cell, column in zip(row.cells, columns)])
        rows.append(TableRow(label, row.path, row.level, own, row.figure, row.type))
    totals = [
        replace(total, field=_headed(total.field, style, titles), cell=_cell(total.cell, total.field, style))
        for total in table.totals
    ]
    notes = table.notes
    if style.flops:
        shown = [*table.fields, *(row.figure for row in table.rows if row.figure), *(t.field for t in table.totals)]
        notes += (FLOPS_NOTE,) if any(field.unit == "mult-adds" for field in shown) else ()
    labels = titles.get(table.label_name, table.labels) if titles else table.labels
    fields = tuple([_headed(column, style, titles) for column in table.fields])
    return replace(table, labels=labels, fields=fields, rows=tuple(rows), totals=tuple(totals), notes=notes)


def _headed(column: Field, style: CellStyle, titles: Mapping[str, str]) -> Field:
    """Return a column with its heading: a title as it is, else with the unit of the column's values."""
    if titles and (name := _column_name(column)) in titles:
        model = column.name.removesuffix(name).removesuffix(".")
        return replace(column, heading=f"{model}: {titles[name]}" if model else titles[name])
    heading, unit = column.heading, style.unit(column)
    if style.flops and column.unit == "mult-adds":
        heading, column = re.sub("mult-adds", "FLOPs", heading, flags=re.IGNORECASE), replace(column, unit="flops")
    if unit not in ("", "auto"):
        heading = f"{heading} ({'MB' if unit == OLD_MB else unit})"
    return replace(column, heading=heading)


def _cell(cell: Cell, column: Field, style: CellStyle) -> Cell:
    """Return a cell as a style writes the values of its column."""
    unit, digits, value = style.unit(column), style.digits, cell.value
    factor = 2 if style.flops and column.unit == "mult-adds" else 1
    if column.scaled:
        if not isinstance(value, int):
            return cell
        figure, name = in_unit(value, unit, digits)
        return replace(cell, text=f"{figure} {name}" if unit == "auto" else figure)
    if unit or factor > 1:
        return _counted(cell, column.unit == "bytes", unit, factor, digits)
    if digits is not None and column.unit in ("%", "ratio") and value is not None:
        return replace(cell, text=NUMBER.sub(f"{value:,.{digits}f}", cell.text, count=1))
    if style.shapes and column.batch is not None:
        batch, last = column.batch, style.shapes == "channels_last"
        return replace(cell, text=AXES.sub(lambda axes: _axes(axes[1], batch, last), cell.text))
    return cell


def _counted(cell: Cell, is_bytes: bool, unit: str, factor: int, digits: int | None) -> Cell:
    """Return a cell whose text has numbers in full, in a unit."""

    def number(match: re.Match[str]) -> str:
        plain = match[0].replace(",", "")
        value: Any = (float if "." in plain else int)(plain) * factor
        if not unit:
            return f"{value:,}" if isinstance(value, int) else f"{value:,.{2 if digits is None else digits}f}"
        figure, name = in_unit(value, unit, digits, BYTE_UNITS if is_bytes else COUNT_UNITS)
        return f"{figure} {name}".rstrip() if unit == "auto" else figure

    def text(shown: str) -> str:
        return COUNT.sub(lambda match: NUMBER.sub(number, match[0]), shown)

    value = cell.value * factor if isinstance(cell.value, int | float) else cell.value
    return replace(cell, value=value, text=text(cell.text), inside=text(cell.inside))


def as_flops(cell: Cell) -> Cell:
    """Return a cell of multiply-adds as FLOPs, two for each."""
    return _counted(cell, False, "", 2, None)


def _axes(text: str, batch: int, last: bool) -> str:
    """Return a shape as "7 x 7 x 2048": without its batch axes (-1, or the first as long as the batch).

    >>> _axes("-1, 2048, 7, 7", -1, last=True), _axes("2, 5, 16", 2, last=False)
    ('7 x 7 x 2048', '5 x 16')
    """
    axes = [int(axis) for axis in text.split(", ")]
    if batch > 0 and batch in axes:
        axes.remove(batch)
    axes = [axis for axis in axes if axis != -1]
    if last and len(axes) > 2:
        axes.append(axes.pop(0))
    return " x ".join(map(str, axes)) or "1"
