"""A table without a look: what every format is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

Value = Union[int, float, str, None]
"""What a cell holds as data; None where there is nothing, or nobody knows."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name in data, its heading in print, and the unit of its values.

    The unit is "bytes", "elements", "mult-adds" or "%"; it is "" for words, which stand on the left of their column.
    """

    name: str
    heading: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure as data and as it reads; no value where there is none, or nobody knows."""

    value: Value
    text: str


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line: its label, the path of its module, how deep it is nested (0: the outermost), a cell for each field."""

    label: str
    path: str
    level: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """A figure of the whole: its name in data, its label in print."""

    field: Field
    cell: Cell


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under fields, and the totals. ``labels`` heads the column of the rows' labels."""

    title: str
    labels: str
    fields: tuple[Field, ...]
    rows: tuple[TableRow, ...]
    totals: tuple[Total, ...] = ()
    notes: tuple[str, ...] = ()
