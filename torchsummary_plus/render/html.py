"""Tables -> HTML: reads well where neither style nor script survives; with both it folds, sorts and searches.

There is no id in it, so any number of tables share a page, and the same table is the same text again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from ..units import one_line
from .table import Cell, Field, Table, Value

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup

HUES = {"elements": "e", "mult-adds": "m", "bytes": "b"}
"""The units whose cells have bars, and the property of the style that is a bar's length in percent."""

LEAST_BAR = 0.5
"""Percent: a shorter bar is not seen in a column of 100 to 200 pixels."""

INDENT = 2
"""Characters that a level moves its labels to the right by; table.css has 16 pixels."""

PADDING = 3.5
"""Digits' widths on both sides of a cell; table.css has 24 pixels."""

LETTER = 0.92
"""Digits' widths that a letter takes on the average, and a comma or a bracket less; measured on system fonts."""

WIDEST = 60
"""Characters of the widest column; what is longer ends in an ellipsis, and in the tooltip."""


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    value: Value
    best: bool
    words: bool
    hue: str
    bar: str


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    path: str
    level: int
    guide: str
    change: Value
    cells: list[_Cell]


def fragment(tables: Iterable[Table]) -> str:
    """Tables as a piece of a page, with what they need of style and script."""
    drawn = [table_html(table) for table in tables]
    css, script = markup(source("table.css")), markup(source("table.js"))
    return template("fragment.html.jinja").render(tables=drawn, css=css, script=script)


def page(title: str, tables: Iterable[Table]) -> str:
    """Tables as a page of their own."""
    content = markup(fragment(tables))
    return template("page.html.jinja").render(title=title, content=content)


def table_html(table: Table, totals_first: bool = False) -> Markup:
    """A table alone, without style or script; its totals stand under it, or come first."""
    wholes = [_whole(field, [row.cells[index].value for row in table.rows]) for index, field in enumerate(table.fields)]
    rows = (
        _Row(
            row.label,
            row.path,
            row.level,
            guide.replace(" ", "\u00a0"),
            next((cell.value for field, cell in zip(table.fields, row.cells) if field.name == "change"), None),
            [_cell(field, cell, whole) for field, cell, whole in zip(table.fields, row.cells, wholes)],
        )
        for row, guide in zip(table.rows, guides([row.level for row in table.rows]))
    )
    widths = [round(width, 1) for width in _widths(table)]
    drawn = template("table.html.jinja").render(
        table=table, rows=rows, widths=widths, width=round(sum(widths), 1), totals_first=totals_first
    )
    return markup(drawn)


def _cell(field: Field, cell: Cell, whole: float) -> _Cell:
    hue, value = HUES.get(field.unit, ""), cell.value
    share = 100 * value / whole if hue and whole and isinstance(value, int | float) else 0
    return _Cell(cell.text, value, cell.best, not field.unit, hue, f"{share:.1f}" if share >= LEAST_BAR else "")


def _whole(field: Field, values: Sequence[Value]) -> float:
    """What a bar of full length stands for: the sum of a column whose rows add up, else the most that one has."""
    figures = [value for value in values if isinstance(value, int | float)] if field.unit in HUES else []
    return sum(figures) if field.adds_up else max(figures, default=0)


def _widths(table: Table) -> Iterator[float]:
    """Digits' widths of each column: no row is left out, so that folding moves nothing sideways."""
    labels = [LETTER * len(row.label) + INDENT * row.level for row in table.rows]
    yield min(WIDEST, max([len(table.labels), *labels])) + PADDING + INDENT
    for index, field in enumerate(table.fields):
        texts = [len(row.cells[index].text) for row in table.rows]
        widest = max(texts, default=0) * (1 if field.unit else LETTER)
        yield min(WIDEST, max(len(field.heading) + INDENT, widest)) + PADDING


def guides(levels: Sequence[int]) -> list[str]:
    """The branches in front of each row of a tree in pre-order.

    >>> guides([0, 1, 2, 1])
    ['', '├─', '│ └─', '└─']
    """
    open_below: set[int] = set()
    found = []
    for level in reversed(levels):
        open_below = {other for other in open_below if other <= level}
        trunk = "".join("│ " if other in open_below else "  " for other in range(1, level))
        found.append(trunk + ("├─" if level in open_below else "└─") if level else "")
        open_below.add(level)
    return found[::-1]


@cache
def source(name: str) -> str:
    """A file of the templates, without the indentation that only its readers need."""
    text = (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


@cache
def _environment() -> Environment:
    """Jinja, which comes with torch, is imported with the first HTML. Text has no control characters."""
    from jinja2 import Environment, FunctionLoader

    def shown(value: object) -> object:
        return one_line(value) if type(value) is str else value

    return Environment(loader=FunctionLoader(source), autoescape=True, finalize=shown)


def template(name: str) -> Template:
    """A template; what it is given is escaped, unless it is :func:`markup`."""
    return _environment().get_template(name)


def markup(html: str) -> Markup:
    """HTML made here, which a template takes as it is."""
    from markupsafe import Markup

    return Markup(html)
