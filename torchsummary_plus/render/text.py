"""A report -> the table as text, through tabulate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tabulate import TableFormat, tabulate

from ..report import Report
from .columns import Column, check_view, chosen_columns
from .lines import STYLES
from .lines import Line as TableLine
from .table import Total
from .totals import COUNTS, SIZES, report_totals

FLAT_WIDTH = 64
"""The least width of torchsummary's table."""

NAME_WIDTH = 20
"""The least width of torchsummary's first column."""

UNITS = {"bytes": " (MB)"}
"""What follows the label of a total in some unit."""


def render(
    report: Report, style: str = "torchsummary", depth: int | None = None, col_names: Iterable[str] | None = None
) -> str:
    """The whole table with its totals, without a newline at the end.

    ``depth`` is the deepest nesting with lines of its own (the root is 0). Raises :class:`InputError` for an unknown
    style, column or depth.
    """
    with_memory = bool(report.row_memory)
    check_view(style, depth, col_names, with_memory)
    columns = chosen_columns(col_names, with_memory)
    lines = STYLES[style](report, depth)
    return _flat(report, lines, columns) if style == "torchsummary" else _tree(report, lines, columns)


def _cells(report: Report, lines: Sequence[TableLine], columns: Sequence[Column], zero: str) -> list[list[str]]:
    return [[line.guide + line.label, *(column.cell(line, report, zero) for column in columns)] for line in lines]


def _flat(report: Report, lines: Sequence[TableLine], columns: Sequence[Column]) -> str:
    """torchsummary's table: right-aligned columns of at least its widths, two spaces after the first one.

    Its rules are one dash wider than its lines: 64 for columns of 20, 25 and 15.
    """
    least = [NAME_WIDTH, *(column.flat_width for column in columns)]
    cells = _cells(report, lines, columns, "0")
    return _table(report, cells, "Layer (type)", columns, least, _flat_row)


def _flat_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (cell.strip().rjust(width) for cell, width in zip(cells, widths))
    return f"{first}  {' '.join(others)}" if others else first


def _tree(report: Report, lines: Sequence[TableLine], columns: Sequence[Column]) -> str:
    """The nested table: names on the left with their branches, the rest on the right; as wide as its cells."""
    cells = _cells(report, lines, columns, "--")
    return _table(report, cells, "Layer (type)", columns, [0] * (1 + len(columns)), _tree_row)


def _tree_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = cells
    right = (cell.strip().rjust(width) for cell, width in zip(others, widths[1:]))
    return "  ".join([first.rstrip().ljust(widths[0]), *right])


def _table(
    report: Report,
    cells: list[list[str]],
    name: str,
    columns: Sequence[Column],
    least: Sequence[int],
    row: Callable[[Sequence[str], Sequence[int]], str],
) -> str:
    """The cells under their headings, ruled as torchsummary rules them, and the totals."""
    headings = [name, *(column.heading for column in columns)]
    widths = [max(w, *(len(line[i]) for line in [headings, *cells])) for i, w in enumerate(least)]
    total = len(row([""] * len(widths), widths))
    if row is _flat_row:
        total = max(FLAT_WIDTH, total + 1)

    def draw(values: Sequence[str], *_: object) -> str:
        return row(values, widths)

    style = TableFormat(
        lineabove=lambda *_: "-" * total,
        linebelowheader=lambda *_: "=" * total,
        linebetweenrows=None,
        linebelow=lambda *_: "=" * total,
        headerrow=draw,
        datarow=draw,
        padding=0,
        with_header_hide=None,
    )
    table = tabulate(cells, headings, tablefmt=style, disable_numparse=True, stralign=None)
    counts, sizes = list(COUNTS), list(SIZES)
    if row is _flat_row:
        sizes.remove("buffer_bytes")
        if "Mult-Adds" not in headings:
            counts.remove("total_mult_adds")
    totals = report_totals(report)
    return "\n".join([table, *_shown(totals, counts), "-" * total, *_shown(totals, sizes), "-" * total])


def _shown(totals: Sequence[Total], names: Sequence[str]) -> list[str]:
    """Some totals as lines; bytes are shown in units of 1024 x 1024, which torchsummary calls MB."""
    chosen = (total for total in totals if total.field.name in names)
    return [f"{total.field.heading}{UNITS.get(total.field.unit, '')}: {total.cell.text}" for total in chosen]
