"""Tables -> HTML that is readable without CSS or JavaScript, and folds, sorts and searches with them.

It uses no ids, so any number of tables can share a page, and the output is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from ..data.units import one_line
from .table import WIDEST, Cell, Field, Table, Value, guides

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup

HUES = {"elements": "e", "mult-adds": "m", "flops": "m", "bytes": "b"}
"""Units whose cells have bars, with the CSS property for a bar's length in percent."""

LEAST_BAR = 0.5  # The shortest bar in percent that is visible in a column of 100 to 200 pixels.
INDENT = 2  # Characters of indentation per level; 16 pixels in table.css.
PADDING = 3.5  # Horizontal padding of a cell in digit widths; 24 pixels in table.css.
NARROW_PADDING = 1.9  # The same on a narrow page, where cells have 12 pixels of padding and a sort arrow may wrap.

NARROW_LABEL = 17
"""Width at which labels wrap on a narrow page, unless the other columns leave more of ``NARROW_PAGE``."""

NARROW_PAGE = 44  # Width of a narrow page in digit widths: 360 pixels less its margins, at font size 12.
LONG_WORD = 12  # Words of a heading may be broken if they have more characters.
LETTER = 0.92  # Average width of a letter in digit widths, measured on system fonts; commas and brackets are narrower.


def fragment(tables: Iterable[Table], drawing: str = "") -> str:
    """Return tables, below a drawing as SVG if there is one, as an HTML fragment with its CSS and JavaScript."""
    drawn = [figure_html(drawing), *map(table_html, tables)]
    css, script = markup(source("table.css")), markup(source("table.js"))
    return template("fragment.html.jinja").render(tables=drawn, css=css, script=script)


def figure_html(drawing: str) -> Markup:
    """Return a drawing as a figure that scrolls; "" for none."""
    return markup(f'<figure class="tsp-graph">{drawing}</figure>\n' if drawing else "")


def page(title: str, content: str) -> str:
    """Return an HTML fragment as a complete page."""
    return template("page.html.jinja").render(title=title, content=markup(content))


def table_html(table: Table, totals_first: bool = False) -> Markup:
    """Return a table without CSS or JavaScript, with its totals below or above it."""
    wholes = [_whole(field, [row.cells[index].value for row in table.rows]) for index, field in enumerate(table.fields)]
    rows = (
        {
            "label": row.label,
            "path": row.path,
            "level": row.level,
            "guide": guide.replace(" ", "\u00a0"),
            "change": next((c.value for field, c in zip(table.fields, row.cells) if field.name == "change"), None),
            "cells": [_cell(field, cell, whole) for field, cell, whole in zip(table.fields, row.cells, wholes)],
        }
        for row, guide in zip(table.rows, guides([row.level for row in table.rows]))
    )
    widths = [round(width, 1) for width in _widths(table, PADDING, arrow=INDENT)]
    narrow = [round(width, 1) for width in _widths(table, NARROW_PADDING, arrow=0)]
    label = min(max(NARROW_LABEL, NARROW_PAGE - sum(narrow[1:])), narrow[0])
    if table.answer and not table.fields[-1].unit:  # Its words are in the last column, and wrap.
        narrow[-1] = min(narrow[-1], max(NARROW_LABEL, NARROW_PAGE - label - sum(narrow[1:-1])))
    drawn = template("table.html.jinja").render(
        table=table, rows=rows, widths=widths, width=round(sum(widths), 1), narrow=[round(label, 1), *narrow[1:]],
        totals_first=totals_first,
    )  # fmt: skip
    return markup(drawn)


def _cell(field: Field, cell: Cell, whole: float) -> dict[str, object]:
    """Return the template data of a cell."""
    hue, value = HUES.get(field.unit, ""), cell.value
    share = 100 * value / whole if hue and whole and isinstance(value, int | float) else 0
    bar = f"{share:.1f}" if share >= LEAST_BAR else ""
    return {
        "text": cell.text, "value": value, "best": cell.best, "words": not field.unit, "hue": hue, "bar": bar,
        "inside": cell.inside,
    }  # fmt: skip


def _whole(field: Field, values: Sequence[Value]) -> float:
    """Return the value of a full bar: the sum of a column that adds up, else its maximum."""
    figures = [value for value in values if isinstance(value, int | float)] if field.unit in HUES else []
    return sum(figures) if field.adds_up else max(figures, default=0)


def _widths(table: Table, padding: float, arrow: int) -> Iterator[float]:
    """Yield the width of each column in digit widths, over all rows, so that folding does not change the layout."""
    labels = [LETTER * len(row.label) + INDENT * row.level for row in table.rows]
    yield max(len(table.labels), min(table.widest, max(labels, default=0))) + padding + INDENT
    for index, field in enumerate(table.fields):
        texts = [len(row.cells[index].inside or row.cells[index].text) for row in table.rows]
        widest = max(texts, default=0) * (1 if field.unit else LETTER)
        most = WIDEST if field.unit else table.widest
        yield max(_heading_width(field.heading) + arrow, min(most, widest)) + padding


def _heading_width(heading: str) -> int:
    """Return the width of a heading that wraps: of its longest word, broken if it is long, in at most three lines."""
    words = heading.split()
    return max(min(LONG_WORD, max(map(len, words), default=0)), -(-len(heading) // 3))


@cache
def source(name: str) -> str:
    """Return a template file without its indentation."""
    text = (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


@cache
def _environment() -> Environment:
    """Return the Jinja environment, imported on first use (torch requires Jinja); text loses its control characters."""
    from jinja2 import Environment, FunctionLoader

    def shown(value: object) -> object:
        return one_line(value) if type(value) is str else value

    return Environment(loader=FunctionLoader(source), autoescape=True, finalize=shown)


def template(name: str) -> Template:
    """Return a template; its variables are escaped unless marked by :func:`markup`."""
    return _environment().get_template(name)


def markup(html: str) -> Markup:
    """Mark HTML as safe, so that templates do not escape it."""
    from markupsafe import Markup

    return Markup(html)
