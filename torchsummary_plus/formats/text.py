"""Tables -> text, drawn by tabulate or in colour by rich, in the width and the characters that a stream takes.

Also GitHub-flavoured Markdown, and LaTeX with booktabs in plain ASCII, which compiles with every engine.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, TextIO
from unicodedata import normalize

from ..data.errors import need_extra
from ..data.units import one_line, visible
from .table import Cell, CellStyle, Table, for_text, guides, written

if TYPE_CHECKING:
    from rich.console import Console

FLAT_WIDTH = 64  # The minimum width of torchsummary's table.
WIDTH = 80  # The width of a terminal, which sentences and wide grids keep to.
NAME_WIDTH = 20  # The minimum width of torchsummary's first column.


def summary_text(table: Table, style: str, is_ascii: bool = False) -> str:
    """Return a summary's table in a style, with its totals, without a trailing newline."""
    table = for_text(table)
    flat = style == "torchsummary"
    lines = [[table.labels, *[field.heading for field in table.fields]]]
    for row in table.rows:
        lines.append([row.label, *[cell.text for cell in row.cells]])
    if not flat:
        for guide, line in zip(guides([row.level for row in table.rows]), lines[1:]):
            line[0] = (guide.translate(ASCII) if is_ascii else guide) + line[0]
    widths = _widths(lines, [NAME_WIDTH if flat else 0, *[field.width if flat else 0 for field in table.fields]])
    left_out, width = {""}, len(_row(lines[0], widths, flat))
    if flat:  # Its rules are one dash wider than its lines, and it has no line for buffers.
        with_work = any(field.unit in ("mult-adds", "flops") for field in table.fields)
        left_out, width = {"buffer_bytes", "" if with_work else "total_mult_adds"}, max(FLAT_WIDTH, width + 1)
    after: tuple[list[str], list[str]] = [], []
    for total in table.totals:
        if total.field.name not in left_out:
            after[total.field.scaled].append(total.text)
    drawn = _ruled(lines, widths, width, flat)
    return "\n".join([drawn, *table.notes, *after[0], "-" * width, *after[1], "-" * width])


def table_text(table: Table, most: int = 0) -> str:
    """Return any table as text: title, indented rows, totals and notes; * marks the best values.

    With ``most`` characters on a line, columns without room are in further grids below, with the labels again, and
    sentences are broken.
    """
    table = for_text(table)
    lines = [[table.labels, *(field.heading for field in table.fields)]]
    for row in table.rows:
        lines.append(["  " * row.level + row.label, *("*" * cell.best + cell.text for cell in row.cells)])
    widths = _widths(lines, [0] * len(lines[0]))
    bands = _bands(widths, most)
    width = max(len(_row([""] * len(band), [widths[place] for place in band])) for band in bands)
    grids = []
    for band in bands:
        own = [[line[place] for place in band] for line in lines]
        grids.append(_ruled(own, [widths[place] for place in band], width))
    notes = [*(total.text for total in table.totals), *table.notes]
    head, after = (
        [filled(line, most, "", "  ") if most else line for line in lines]
        for lines in ([table.title, *([table.answer] if table.answer else [])], notes)
    )
    further = [grid.split("\n", 1)[1] for grid in grids[1:]]  # The rule above is that below the grid before.
    return "\n".join([*head, grids[0], *further, *([*after, "-" * width] if after else [])])


def _bands(widths: Sequence[int], most: int) -> list[list[int]]:
    """Return the columns of each grid: as many as fit in ``most`` characters beside the labels, and at least one.

    >>> _bands([10, 20, 20, 20], 64), _bands([10, 20], 0)
    ([[0, 1, 2], [0, 3]], [[0, 1]])
    """
    bands = [[0]]
    for place in range(1, len(widths)):
        across = sum(widths[column] + 2 for column in bands[-1]) + widths[place]
        if most and across > most and len(bands[-1]) > 1:
            bands.append([0])
        bands[-1].append(place)
    return bands


NO_BREAK = "\u00a0"  # Keeps the words between two commas of a title on one line.
BAR = 20  # Characters of a bar for the whole.


def answer_text(table: Table, width: int, units: str | None = None) -> str:
    """Return a memory estimate's table as text: its answer, and rows of a size, a share and words or a bar."""
    (table,), unit = written([for_text(table)], CellStyle(units)), units or table.unit
    after = "" if unit == "auto" else f" {unit}"
    label = max(len(row.label) for row in table.rows)
    size = max(len(row.cells[0].text) for row in table.rows)
    lines = []
    for row in table.rows:
        nbytes, share, words = row.cells
        bar = "#" * round(BAR * share.value / 100) if isinstance(share.value, float) else ""
        start = f"  {row.label:<{label}}  {nbytes.text:>{size}}{after}  {share.text:>7}  "
        lines.append(filled(words.text or bar or "-", width, start, " " * len(start)).rstrip(" -"))
    head = [filled(table.title.replace(" ", NO_BREAK).replace(f",{NO_BREAK}", ", "), width, "", "  "), table.answer]
    notes = filled(" ".join(table.notes), width)
    return "\n".join([*head, "", *lines, *(["", notes] if notes else [])]).replace(NO_BREAK, " ")


def filled(text: str, width: int, start: str = "", further: str = "") -> str:
    """Return a text on lines of a width, if its words allow, the first one beginning with ``start``."""
    room = max(width, len(start) + BAR)
    return fill(
        text, room, initial_indent=start, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def _row(cells: Sequence[str], widths: Sequence[int], flat: bool = False) -> str:
    """Return a line: torchsummary's is right-aligned, the nested table's has names on the left, with their branches."""
    first = cells[0].strip().rjust(widths[0]) if flat else cells[0].rstrip().ljust(widths[0])
    others = [cell.strip().rjust(width) for cell, width in zip(cells[1:], widths[1:])]
    return "  ".join([first, " ".join(others)] if flat and others else [first, *others])


def _widths(lines: Sequence[Sequence[str]], least: Sequence[int]) -> list[int]:
    return [max(width, *map(len, texts)) for width, texts in zip(least, zip(*lines))]


def _ruled(lines: Sequence[Sequence[str]], widths: Sequence[int], width: int, flat: bool = False) -> str:
    """Return the cells below their headings, the first line, with torchsummary's rules."""
    from tabulate import TableFormat, tabulate  # Imported here: estimates start faster without it.

    def draw(line: Sequence[str], *_: object) -> str:
        return line[0]

    def rule(*_: object) -> str:
        return "=" * width

    form = TableFormat(lambda *_: "-" * width, rule, None, rule, draw, draw, padding=0, with_header_hide=None)
    heading, *drawn = [[_row(cells, widths, flat)] for cells in lines]  # As one column, which tabulate draws faster.
    table: str = tabulate(drawn, heading, tablefmt=form, disable_numparse=True, stralign=None)
    return table


ASCII = str.maketrans("├└│─", "|`|-")  # Stand-ins for the tree's branches.


def columns_of(stream: TextIO) -> int | None:
    """Return a terminal's width in characters; None for a pipe or a file."""
    try:
        return shutil.get_terminal_size().columns if stream.isatty() else None
    except (AttributeError, ValueError):  # Not a real stream, or a closed one.
        return None


def printable(text: str, stream: TextIO | None = None) -> str:
    """Return text that a stream, by default standard output, can encode.

    Tree branches become ASCII, and other characters that it lacks "?".

    >>> from io import BytesIO, TextIOWrapper
    >>> [printable("└─fc (Linear)", TextIOWrapper(BytesIO(), encoding)) for encoding in ("utf-8", "ascii")]
    ['└─fc (Linear)', '`-fc (Linear)']
    """
    encoding: str = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text


WIDTHS = (48, 40, 32, 25)  # The widths of cells to try, from the widest; the last is torchsummary's column.

WORK = "magenta"
COLOURS = {"elements": "yellow", "mult-adds": WORK, "flops": WORK, "bytes": "green", "count": "yellow", "%": "yellow"}
"""The colour of a column, by its unit; names and shapes have none."""

LEAST = 4  # Fewest characters of a name or shape in colour; a terminal wraps what is wider still.
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
    table = for_text(table)
    names = [table.labels, *(field.heading for field in table.fields)]
    grid = need_extra("rich.table", "rich").Table(box=None, pad_edge=False)
    widths = _rich_widths(table, console.width)
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


def _rich_widths(table: Table, columns: int) -> list[int]:
    """Return the columns' widths: numbers in full, the widest other columns narrowed until the table fits."""
    widths = [max(len(table.labels), *(2 * row.level + len(row.label) for row in table.rows))]
    for place, field in enumerate(table.fields):
        cells = (row.cells[place] for row in table.rows)
        widths.append(max([len(field.heading), *(len(cell.inside or cell.text) for cell in cells)]))
    flexible = [0, *(place for place, field in enumerate(table.fields, 1) if not field.unit)]
    while sum(widths) + GAP * len(widths) > columns and max(widths[place] for place in flexible) > LEAST:
        widths[max(flexible, key=widths.__getitem__)] -= 1
    return widths


INDENT = "&nbsp;" * 4  # Indentation per level of nesting; plain spaces would be trimmed.

MARKUP = re.compile(r"[\\`*|<>&~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|(?<=\])[(\[]|\[(?=\^)")
"""What may start inline markup in GitHub-flavoured Markdown; an underscore inside a word does not."""


def markdown_text(tables: Sequence[Table]) -> str:
    """Return tables, each below its title, with totals and notes as a list below it."""
    return "\n".join("\n".join(_markdown(for_text(table))) + "\n" for table in tables)


def literal(text: str) -> str:
    r"""Escape text so that GitHub shows it literally, on one line.

    >>> print(literal("a|b <script> __init__ layer_1 [-1, 64]"))
    a\|b \<script\> \_\_init\_\_ layer_1 [-1, 64]
    """
    # GitHub treats \$ as the end of a formula.
    return MARKUP.sub(lambda match: "&#36;" if match[0] == "$" else "\\" + match[0], one_line(text))


def _markdown(table: Table) -> Iterator[str]:
    yield f"**{literal(table.title)}**"
    yield ""
    if table.answer:
        yield from (literal(table.answer), "")
    headings = [literal(table.labels), *(literal(field.heading) for field in table.fields)]
    rows = []
    for row in table.rows:
        cells = (f"**{literal(cell.text)}**" if cell.best else literal(cell.text) for cell in row.cells)
        rows.append([INDENT * row.level + literal(row.label), *cells])
    widths = [max(map(len, column)) for column in zip(headings, *rows)]
    to_left = [True, *(not field.unit for field in table.fields)]
    dashes = ["-" * max(2, width - 1) for width in widths]
    rules = [f":{rule}" if left else f"{rule}:" for left, rule in zip(to_left, dashes)]
    for line in (headings, rules, *rows):
        placed = (c.ljust(width) if left else c.rjust(width) for c, left, width in zip(line, to_left, widths))
        yield f"| {' | '.join(placed)} |"
    after = [*(total.text for total in table.totals), *table.notes]
    yield from ["", *(f"- {literal(line)}" for line in after)] if after else []


PAGE_LINES = 40
"""Lines per page: of the 550 pt text height of LaTeX's article, caption and rules leave 40 lines of 12 pt."""

SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}", "`": r"\char96{}", "\N{NO-BREAK SPACE}": "~",
    "\N{LATIN SMALL LETTER SHARP S}": r"\ss{}", "\N{LATIN SMALL LETTER AE}": r"\ae{}",
    "\N{LATIN SMALL LETTER O WITH STROKE}": r"\o{}", "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{MICRO SIGN}": r"$\mu$", "\N{GREATER-THAN OR EQUAL TO}": r"$\geq$", "\N{LESS-THAN OR EQUAL TO}": r"$\leq$",
    "\N{RIGHTWARDS ARROW}": r"$\to$", "$": r"$\mathdollar$", **{c: f"\\{c}" for c in "{}&#_%"},
}  # fmt: skip

ACCENTS = dict(zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327", "`'^~=u.\"rHvc"))
"""LaTeX's accent command for each combining mark."""

LIGATURE = re.compile(r"([-',])(?=\1)")
"""What TeX would turn into ligatures: two hyphens (a dash), two commas or apostrophes (quotation marks)."""

MINUS = re.compile(r"(?<![\w.-])-(?=\d)")  # The minus sign of a number.
TIMES = re.compile(r"(?<=\d )x(?= \d)")  # The cross between the axes of a shape.

GREEK = """
    alpha beta Gamma Delta epsilon zeta eta Theta iota kappa Lambda mu
    nu Xi omicron Pi rho varsigma Sigma tau Upsilon Phi chi Psi Omega
""".split()  # noqa: SIM905
"""LaTeX's commands for the letters from U+03B1 on, except omicron; other capitals than these look like Latin ones."""

GREEK_LETTERS = {
    **{chr(0x3B1 + place): f"$\\{name.lower()}$" for place, name in enumerate(GREEK) if name != "omicron"},
    **{chr(0x391 + place): f"$\\{name}$" for place, name in enumerate(GREEK) if name.istitle()},
}


def escape(text: str) -> str:
    r"""Escape text for LaTeX, on one line; letters without a command are written like U+4E2D.

    >>> print(escape("100% of_\\alpha {é}"))
    100\% of\_\textbackslash{}alpha \{\'{e}\}
    """
    return LIGATURE.sub(r"\1{}", "".join(map(_letter, normalize("NFC", one_line(text)))))


def _letter(c: str) -> str:
    if c in SPECIAL:
        return SPECIAL[c]
    if c.isascii():
        return c
    base, *marks = [*normalize("NFD", c)]
    if base.isascii() and len(marks) == 1 and marks[0] in ACCENTS:
        return f"\\{ACCENTS[marks[0]]}{{{base if base not in 'ij' else chr(92) + base}}}"
    if c in GREEK_LETTERS:
        return GREEK_LETTERS[c]
    return rf"\texttt{{U+{ord(c):04X}}}"


def latex_text(tables: Sequence[Table], caption: str | None = None, label: str | None = None) -> str:
    """Return tables as ``table`` environments, or ``longtable`` if longer than a page.

    ``caption`` (plain text) replaces the first table's title, whose settings then become a note. ``label`` defaults to
    ``tab:`` plus the first title; the labels of further tables end in a number.
    """
    label = label or "tab:" + ("-".join(re.findall(r"[a-z0-9]+", tables[0].title.lower())) or "summary")
    parts = []
    for number, table in enumerate(map(for_text, tables), 1):
        above = escape(table.title)
        if caption is not None and number == 1:
            above, table = escape(caption), replace(table, notes=(*table.settings, *table.notes))
        parts.append("\n".join(_table(table, above, label if number == 1 else f"{label}-{number}")) + "\n")
    long = any(map(_is_long, tables))
    packages = ["% \\usepackage{booktabs}\n", *(["% \\usepackage{longtable}\n"] if long else [])]
    return "".join(packages) + "\n".join(parts)


def _is_long(table: Table) -> bool:
    return len(table.rows) + len(table.totals) + len(table.notes) > PAGE_LINES


def _table(table: Table, caption: str, label: str) -> Iterator[str]:
    columns = "@{}l" + "".join("r" if field.unit else "l" for field in table.fields) + "@{}"
    headings = " & ".join(map(escape, [table.labels, *(field.heading for field in table.fields)])) + r" \\"
    body = []
    for row in table.rows:
        name = escape(row.label)  # LaTeX would read a leading [ as a length.
        start = rf"\hspace*{{{row.level}em}}" if row.level else "{}" if name.startswith(("[", "*")) else ""
        body.append(" & ".join([start + name, *map(_cell, row.cells)]) + r" \\")
    body += [r"\midrule"] if table.totals else []
    for total in table.totals:  # Its label is in the first column, its figure right-aligned across the others.
        name, figure, count = escape(total.field.heading), _cell(total.cell), len(table.fields)
        body.append(rf"{name} & \multicolumn{{{count}}}{{r@{{}}}}{{{figure}}} \\" if count else rf"{name}: {figure} \\")
    below = filter(None, (table.answer, *table.notes))
    notes = [rf"\par\smallskip{{\footnotesize {escape(note)}\par}}" for note in below]
    named = rf"\caption{{{caption}}}\label{{{label}}}"
    if _is_long(table):
        head = [r"\toprule", headings, r"\midrule"]
        yield from (rf"\begin{{longtable}}{{{columns}}}", rf"{named} \\", *head, r"\endfirsthead")
        yield from (*head, r"\endhead", r"\bottomrule", r"\endfoot", *body, r"\end{longtable}", *notes)
    else:
        yield from (r"\begin{table}[htbp]", r"\centering", named, r"\par\smallskip")
        yield from (rf"\begin{{tabular}}{{{columns}}}", r"\toprule", headings, r"\midrule", *body)
        yield from (r"\bottomrule", r"\end{tabular}", *notes, r"\end{table}")


def _cell(cell: Cell) -> str:
    text = MINUS.sub("$-$", escape(cell.text)).replace(r"\textgreater{}=", r"$\geq$")
    text = TIMES.sub(r"$\\times$", text)
    return rf"\textbf{{{text}}}" if cell.best else text
