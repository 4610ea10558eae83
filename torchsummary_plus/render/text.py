"""A report -> the table as text, through tabulate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tabulate import TableFormat, tabulate

from ..errors import InputError, choice_error
from ..report import Report
from ..units import describe, mebibytes
from .columns import Column, chosen_columns
from .lines import STYLES
from .lines import Line as TableLine

FLAT_WIDTH = 64
"""The least width of torchsummary's table."""

NAME_WIDTH = 20
"""The least width of torchsummary's first column."""


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


def check_view(style: str, depth: int | None, col_names: Iterable[str] | None, with_memory: bool = False) -> None:
    """Raise :class:`InputError` for an unknown style, column or depth."""
    if style not in STYLES:
        raise choice_error("style", style, STYLES)
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 0):
        raise InputError(f"depth is {describe(depth)}; accepted: None for all, or an integer of at least 0")
    chosen_columns(col_names, with_memory)


def _cells(report: Report, lines: Sequence[TableLine], columns: Sequence[Column], zero: str) -> list[list[str]]:
    return [[line.label, *(column.cell(line, report, zero) for column in columns)] for line in lines]


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
    work = _work_totals(report) if row is _tree_row or "Mult-Adds" in headings else []
    sizes = _size_totals(report, with_buffers=row is _tree_row)
    return "\n".join([table, *_parameter_totals(report), *work, "-" * total, *sizes, "-" * total])


def _parameter_totals(report: Report) -> list[str]:
    return [
        f"Total params: {report.total_params:,}",
        f"Trainable params: {report.trainable_params:,}",
        f"Non-trainable params: {report.non_trainable_params:,}",
    ]


def _work_totals(report: Report) -> list[str]:
    if report.run.kind == "none":
        return ["Total mult-adds: N/A"]
    if not report.unknown_ops:
        return [f"Total mult-adds: {report.total_mult_adds:,}"]
    names = ", ".join(f"{name} x {count:,}" for name, count in report.unknown_ops)
    return [f"Total mult-adds: >={report.total_mult_adds:,} (not counted: {names})"]


def _size_totals(report: Report, with_buffers: bool) -> list[str]:
    ran = report.run.kind != "none"
    return [
        f"Input size (MB): {mebibytes(report.input_bytes) if ran else 'N/A'}",
        f"Forward/backward pass size (MB): {mebibytes(report.forward_backward_bytes) if ran else 'N/A'}",
        f"Params size (MB): {mebibytes(report.param_bytes)}",
        *([f"Buffers size (MB): {mebibytes(report.buffer_bytes)}"] if with_buffers else []),
        f"Estimated Total Size (MB): {mebibytes(report.total_bytes) if ran else 'N/A'}",
    ]
