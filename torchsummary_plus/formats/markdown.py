"""Tables -> GitHub-flavoured Markdown, with names escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..data.units import one_line
from .table import Table, with_short_cells

INDENT = "&nbsp;" * 4  # Indentation per level of nesting; plain spaces would be trimmed.

MARKUP = re.compile(r"[\\`*|<>&~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|(?<=\])[(\[]|\[(?=\^)")
"""What may start inline markup in GitHub-flavoured Markdown; an underscore inside a word does not."""


def markdown_text(tables: Sequence[Table]) -> str:
    """Return tables, each below its title, with totals and notes as a list below it."""
    return "\n".join("\n".join(_lines(with_short_cells(table))) + "\n" for table in tables)


def escape(text: str) -> str:
    r"""Escape text so that GitHub shows it literally, on one line.

    >>> print(escape("a|b <script> __init__ layer_1 [-1, 64]"))
    a\|b \<script\> \_\_init\_\_ layer_1 [-1, 64]
    """
    # GitHub treats \$ as the end of a formula.
    return MARKUP.sub(lambda match: "&#36;" if match[0] == "$" else "\\" + match[0], one_line(text))


def _lines(table: Table) -> Iterator[str]:
    yield f"**{escape(table.title)}**"
    yield ""
    if table.answer:
        yield from (escape(table.answer), "")
    headings = [escape(table.labels), *(escape(field.heading) for field in table.fields)]
    rows = []
    for row in table.rows:
        cells = (f"**{escape(cell.text)}**" if cell.best else escape(cell.text) for cell in row.cells)
        rows.append([INDENT * row.level + escape(row.label), *cells])
    widths = [max(map(len, column)) for column in zip(headings, *rows)]
    to_left = [True, *(not field.unit for field in table.fields)]
    dashes = ["-" * max(2, width - 1) for width in widths]
    rules = [f":{rule}" if left else f"{rule}:" for left, rule in zip(to_left, dashes)]
    for line in (headings, rules, *rows):
        placed = (c.ljust(width) if left else c.rjust(width) for c, left, width in zip(line, to_left, widths))
        yield f"| {' | '.join(placed)} |"
    after = [*(total.text for total in table.totals), *table.notes]
    yield from ["", *(f"- {escape(line)}" for line in after)] if after else []
