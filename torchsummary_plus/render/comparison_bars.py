"""Bar chart of a comparison: a row per model, a panel per figure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..data.units import one_line
from ..formats.table import Cell, TableRow
from ..report.comparison import Compared
from .comparison_tables import figures_table
from .figure import (
    BLUE,
    COLUMN_WIDTH,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    TEXT,
    VERMILLION,
    Place,
    in_thousands,
    in_units,
    ink,
    thin_ink,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)

NAMES = {
    "total_params": "Parameters",
    "trainable_params": "Trainable",
    "non_trainable_params": "Frozen",
    "total_mult_adds": "Mult-adds per sample",
    "forward_backward_bytes": "Forward/backward",
    "total_bytes": "Total size",
}
"""Short labels for figures whose usual label is too long for a panel."""

MEMORY = ("training_peak_bytes", "inference_peak_bytes", "total_bytes")
"""The figures for the memory panel, in order of preference: the first one known is shown."""

NAME = 18
"""Maximum characters on a line of a model's name; longer names take several lines."""

TITLE = 11
"""The same for a panel's title."""

PANELS = 3
"""Maximum panels side by side; further panels go below."""

LETTER = 0.058
"""Inches of a letter, at ``TEXT`` points."""

LINE = 0.13
"""Inches of a line."""

SIDES = 0.2
"""Inches beside the panels: ticks and margins."""

BREAKS = re.compile(r"(?<=[-/_. ])")
"""Where a name may be broken."""


def draw_comparison(compared: Compared, figures: Sequence[str] | None, place: Place) -> Axes:
    """Draw figures of each model as bars; None: parameters, multiply-adds, memory. Raises :class:`InputError`."""
    chosen = [figures] if isinstance(figures, str) else None if figures is None else list(figures)
    known = {row.path: row for row in figures_table(compared, chosen).rows}
    wanted = list(known)
    if chosen is None:
        memory = next((name for name in MEMORY if name in known), None)
        wanted = [name for name in ("total_params", "total_mult_adds", memory) if name in known]
    entries = compared.entries
    names = [wrapped(entry.name, NAME) for entry in entries]
    columns = min(PANELS, len(wanted))
    bands = [wanted[start : start + PANELS] for start in range(0, len(wanted), PANELS)]
    texts = [_numbers(known[name], len(entries)) for name in wanted]
    titles = [wrapped(f"{NAMES.get(name, known[name].label)}{f' ({unit})' if unit else ''}", TITLE)
              for name, (unit, _) in zip(wanted, texts)]  # fmt: skip
    row = max(1, *(name.count("\n") + 1 for name in names))
    below = max(title.count("\n") + 1 for title in titles) + 0.5
    step = len(entries) + below / row
    ax = place(0.1 + LINE * row * step * len(bands) + 0.05)
    share = _share(names, [numbers for _, numbers in texts], columns)
    for number, name in enumerate(wanted):
        band, panel = divmod(number, PANELS)
        _panel(ax, panel, band * step, share, known[name], texts[number][1], number)
    ax.set_xlim(0, columns)
    ax.set_ylim((len(bands) - 1) * step + len(entries) - 0.5, -0.5)
    tidy(ax)
    ax.spines["bottom"].set_visible(False)
    ax.spines["left"].set_visible(False)
    rows = [band * step + place for band in range(len(bands)) for place in range(len(entries))]
    ax.set_yticks(rows, names * len(bands), parse_math=False)
    last = len(wanted) - len(bands[-1])
    ax.set_xticks([panel + share / 2 for panel in range(len(bands[-1]))], titles[last:])
    for number, title in enumerate(titles[:last]):
        band, panel = divmod(number, PANELS)
        at = (panel + share / 2, band * step + len(entries) - 0.4)
        ax.annotate(title, at, ha="center", va="top", fontsize=TEXT, color=ink(ax), annotation_clip=False)
    ax.tick_params(length=0)
    return ax


def wrapped(name: str, width: int) -> str:
    """Return a name on lines of at most ``width`` characters, broken after punctuation where it has some.

    >>> wrapped("facebook/convnext-tiny-224", 14)
    'facebook/\\nconvnext-tiny-\\n224'
    """
    lines = [""]
    for part in BREAKS.split(one_line(name)):
        if len(lines[-1]) + len(part.rstrip()) > width and lines[-1]:
            lines.append("")
        while len(part.rstrip()) > width:
            lines[-1], part = part[:width], part[width:]
            lines.append("")
        lines[-1] += part
    return "\n".join(line.strip() for line in lines if line.strip())


def _share(names: Sequence[str], numbers: Sequence[Sequence[str]], columns: int) -> float:
    """Return the share of a panel that its longest bar may take: the rest is for the number beside it."""
    name = max(len(line) for text in names for line in text.split("\n"))
    panel = (COLUMN_WIDTH - SIDES - LETTER * name) / columns
    number = LETTER * (max(len(text) for texts in numbers for text in texts) + 1.5)
    return min(0.9, max(0.15, 1 - number / panel))


def _numbers(row: TableRow, count: int) -> tuple[str, list[str]]:
    """Return the unit of a figure and each entry's number in it."""
    cells = row.cells[:count]
    most = max(cell.value if isinstance(cell.value, int | float) else 0 for cell in cells)
    of_bytes = row.figure is not None and row.figure.unit == "bytes"
    size, unit = in_units(most) if of_bytes else in_thousands(most)
    return unit, [_number(cell, size) for cell in cells]


def _panel(ax: Axes, panel: int, top: float, share: float, row: TableRow, numbers: Sequence[str], number: int) -> None:
    """Draw the bars of one figure with their numbers, scaled to ``share`` of the panel."""
    cells = row.cells[: len(numbers)]
    values = [cell.value if isinstance(cell.value, int | float) else 0 for cell in cells]
    most = max(values)
    widths = [share * value / most if most else 0 for value in values]
    places = [top + place for place in range(len(values))]
    ax.barh(places, widths, 0.7, left=panel, color=COLOURS[number % len(COLOURS)], linewidth=0, label=row.path)
    ax.plot([panel, panel], [top - 0.5, top + len(values) - 0.5], color=thin_ink(ax), linewidth=0.5)
    for place, cell, width, text in zip(places, cells, widths, numbers):
        ax.annotate(
            text, (panel + width, place), (2, 0), textcoords="offset points", va="center_baseline", fontsize=TEXT,
            color=ink(ax), fontweight="bold" if cell.best else "normal",
        )  # fmt: skip


def _number(cell: Cell, size: int) -> str:
    if not isinstance(cell.value, int | float):
        return "N/A"
    bound = "\N{GREATER-THAN OR EQUAL TO}" if cell.text.startswith(">=") else ""
    shown = cell.value / size
    return f"{bound}{shown:,.{0 if size == 1 else 1 if shown >= 100 else 2}f}"
