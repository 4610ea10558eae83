"""A summary in a terminal: cells as wide as the terminal allows and, with rich, colours and repeated headers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from ..data.errors import need_extra
from ..data.units import visible
from .table import Table, guides, on_lines, with_short_cells

if TYPE_CHECKING:
    from rich.console import Console

WIDTHS = (48, 40, 32, 25)  # The widths of cells to try, from the widest; the last is torchsummary's column.

WORK = "magenta"
COLOURS = {"elements": "yellow", "mult-adds": WORK, "flops": WORK, "bytes": "green", "count": "yellow", "%": "yellow"}
"""The colour of a column, by its unit; names and shapes have none."""

LEAST = 4  # Fewest characters of a name or shape; a terminal wraps what is wider still.
GAP = 2  # Characters between columns.
HEADER_LINES = 4  # Lines of a screen that are left for the header and the prompt.


def fitted(draw: Callable[[int], str], widest: int, columns: int) -> str:
    """Return the text of the widest cells with which no line is longer than ``columns``, else of the narrowest."""
    text = draw(widest)
    for width in WIDTHS:
        if width < widest and max(map(len, text.splitlines()), default=0) > columns:
            text = draw(width)
    return text


def rich_text(table: Table, after: Sequence[str], stream: TextIO = sys.stdout) -> str:
    """Return a table with colours, as wide as the terminal, with a header on every screen; then the lines ``after``.

    Numbers are in full, whatever the width. Raises :class:`MissingExtraError` without rich.
    """
    console: Console = need_extra("rich.console", "rich").Console(file=stream)
    table = with_short_cells(on_lines(table))
    names = [table.labels, *(field.heading for field in table.fields)]
    grid = need_extra("rich.table", "rich").Table(box=None, pad_edge=False)
    widths = _widths(table, console.width)
    grid.add_column(table.labels, no_wrap=True, overflow="ellipsis", width=widths[0])
    for field, width in zip(table.fields, widths[1:]):
        grid.add_column(
            field.heading, justify="right" if field.unit else "left", style=COLOURS.get(field.unit, ""), no_wrap=True,
            overflow="ellipsis", width=width,
        )  # fmt: skip
    every = max(1, console.height - HEADER_LINES)
    text = need_extra("rich.text", "rich").Text
    for number, (row, guide) in enumerate(zip(table.rows, guides([row.level for row in table.rows]))):
        if number and number % every == 0:
            grid.add_row(*(text(name, "bold") for name in names))
        name, bracket, rest = row.label.partition(" (")
        bold = "bold" if row.level == 0 or bracket else ""
        label = text.assemble((guide, "dim"), (name, bold), (bracket + rest, "cyan"))
        grid.add_row(label, *(text(cell.inside, "dim") if cell.inside else text(cell.text) for cell in row.cells))
    with console.capture() as captured:
        console.print(grid, width=max(console.width, sum(widths) + GAP * len(widths)), crop=False)
        console.print(text("\n".join(map(visible, after))))
    return captured.get().rstrip("\n")


def _widths(table: Table, columns: int) -> list[int]:
    """Return the columns' widths: numbers in full, the widest other columns narrowed until the table fits."""
    widths = [max(len(table.labels), *(2 * row.level + len(row.label) for row in table.rows))]
    for place, field in enumerate(table.fields):
        cells = (row.cells[place] for row in table.rows)
        widths.append(max([len(field.heading), *(len(cell.inside or cell.text) for cell in cells)]))
    flexible = [0, *(place for place, field in enumerate(table.fields, 1) if not field.unit)]
    while sum(widths) + GAP * len(widths) > columns and max(widths[place] for place in flexible) > LEAST:
        widths[max(flexible, key=widths.__getitem__)] -= 1
    return widths
