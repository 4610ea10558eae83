"""Tables -> HTML that is readable without CSS or JavaScript, and folds, sorts and searches with them.

It uses no ids, so any number of tables can share a page, and the output is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from ..data.units import one_line
from .table import WIDEST, Field, Table, Value, guides

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
    css, script = Markup(source("table.css")), Markup(source("table.js"))
    return ENVIRONMENT.get_template("fragment.html.jinja").render(tables=drawn, css=css, script=script)


def figure_html(drawing: str) -> Markup:
    """Return a drawing as a figure that scrolls; "" for none."""
    return Markup(f'<figure class="tsp-graph">{drawing}</figure>\n' if drawing else "")


def table_html(table: Table, totals_first: bool = False) -> Markup:
    """Return a table without CSS or JavaScript, with its totals below or above it."""
    bars = [_bars(field, [row.cells[place].value for row in table.rows]) for place, field in enumerate(table.fields)]
    rows = []
    for place, (row, guide) in enumerate(zip(table.rows, guides([row.level for row in table.rows]))):
        own = [(field, cell, lengths[place]) for field, cell, lengths in zip(table.fields, row.cells, bars)]
        change = next((cell.value for field, cell, _ in own if field.name == "change"), None)
        rows.append((row, guide.replace(" ", "\u00a0"), change, own))
    widths = [round(width, 1) for width in _widths(table, PADDING, arrow=INDENT)]
    narrow = [round(width, 1) for width in _widths(table, NARROW_PADDING, arrow=0)]
    label = min(max(NARROW_LABEL, NARROW_PAGE - sum(narrow[1:])), narrow[0])
    if table.answer and not table.fields[-1].unit:  # Its words are in the last column, and wrap.
        narrow[-1] = min(narrow[-1], max(NARROW_LABEL, NARROW_PAGE - label - sum(narrow[1:-1])))
    drawn = ENVIRONMENT.get_template("table.html.jinja").render(
        table=table, rows=rows, hues=HUES, widths=widths, width=round(sum(widths), 1),
        narrow=[round(label, 1), *narrow[1:]], totals_first=totals_first,
    )  # fmt: skip
    return Markup(drawn)


def _bars(field: Field, values: Sequence[Value]) -> list[str]:
    """Return the length of each cell's bar in percent: a full one is a column's sum if it adds up, else its maximum."""
    figures = [value if isinstance(value, int | float) and field.unit in HUES else 0 for value in values]
    whole = sum(figures) if field.adds_up else max(figures, default=0)
    shares = (100 * value / whole if whole else 0 for value in figures)
    return [f"{share:.1f}" if share >= LEAST_BAR else "" for share in shares]


def _widths(table: Table, padding: float, arrow: int) -> Iterator[float]:
    """Yield the width of each column in digit widths, over all rows, so that folding does not change the layout."""
    labels = [LETTER * len(row.label) + INDENT * row.level for row in table.rows]
    yield max(len(table.labels), min(table.widest, max(labels, default=0))) + padding + INDENT
    for index, field in enumerate(table.fields):
        texts = [len(row.cells[index].inside or row.cells[index].text) for row in table.rows]
        widest = max(texts, default=0) * (1 if field.unit else LETTER)
        most = WIDEST if field.unit else table.widest
        # A heading wraps on at most three lines, and its words are broken if they are long.
        word = min(LONG_WORD, max(map(len, field.heading.split()), default=0))
        yield max(word + arrow, -(-len(field.heading) // 3) + arrow, min(most, widest)) + padding


@cache
def source(name: str) -> str:
    """Return a template file without its indentation."""
    text = (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def _shown(value: object) -> object:
    return one_line(value) if type(value) is str else value


ENVIRONMENT = Environment(loader=FunctionLoader(source), autoescape=True, finalize=_shown)
"""The templates: variables are escaped unless they are ``Markup``, and text loses its control characters."""
