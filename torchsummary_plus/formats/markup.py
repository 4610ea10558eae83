"""Tables -> GitHub-flavoured Markdown, and LaTeX with booktabs in plain ASCII, which compiles with every engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from unicodedata import normalize

from ..data.units import one_line
from .table import Cell, Table, with_short_cells

INDENT = "&nbsp;" * 4  # Indentation per level of nesting; plain spaces would be trimmed.

MARKUP = re.compile(r"[\\`*|<>&~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|(?<=\])[(\[]|\[(?=\^)")
"""What may start inline markup in GitHub-flavoured Markdown; an underscore inside a word does not."""


def markdown_text(tables: Sequence[Table]) -> str:
    """Return tables, each below its title, with totals and notes as a list below it."""
    return "\n".join("\n".join(_markdown(with_short_cells(table))) + "\n" for table in tables)


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
    for number, table in enumerate(map(with_short_cells, tables), 1):
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
