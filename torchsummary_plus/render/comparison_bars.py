"""Bar chart of a comparison: a row per model, a panel per figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..data.errors import choice_error
from ..report.comparison import Compared
from .comparison_tables import figures_table
from .figure import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, TEXT, VERMILLION, Place, elided, in_thousands, in_units, tidy
from .table import Cell, TableRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)

NAMES = {
    "total_params": "Parameters",
    "trainable_params": "Trainable",
    "non_trainable_params": "Frozen",
    "total_mult_adds": "Multiply-adds",
    "forward_backward_bytes": "Forward/backward",
    "total_bytes": "Total size",
}
"""Short labels for figures whose usual label is too long for a panel."""

MEMORY = ("training_peak_bytes", "inference_peak_bytes", "total_bytes")
"""The figures for the memory panel, in order of preference: the first one known is shown."""

BARS = 2.5
BESIDE = 0.36
"""Inches for all panels together, and within each for the number beside its longest bar."""

ROOM = 20
"""The most characters of a model's name."""


def draw_comparison(compared: Compared, figures: Sequence[str] | None, place: Place) -> Axes:
    """Draw figures of each model as bars; None: parameters, multiply-adds, memory. Raises :class:`InputError`."""
    known = {row.path: row for row in figures_table(compared).rows}
    wanted = (figures,) if isinstance(figures, str) else figures
    if wanted is None:
        memory = next((name for name in MEMORY if name in known), None)
        wanted = [name for name in ("total_params", "total_mult_adds", memory) if name in known]
    for name in wanted:
        if name not in known:
            raise choice_error("figure", name, known)
    entries = compared.entries
    ax = place(0.45 + 0.16 * len(entries))
    share = max(0.2, 1 - BESIDE * len(wanted) / BARS)
    titles = [_panel(ax, panel, share, known[name], len(entries)) for panel, name in enumerate(wanted)]
    ax.set_xlim(0, len(wanted))
    ax.set_ylim(len(entries) - 0.5, -0.5)
    tidy(ax)
    ax.spines["bottom"].set_visible(False)
    ax.spines["left"].set_visible(False)
    ax.set_yticks(range(len(entries)), [elided(entry.name, ROOM) for entry in entries], parse_math=False)
    ax.set_xticks([panel + share / 2 for panel in range(len(wanted))], titles)
    ax.tick_params(length=0)
    return ax


def _panel(ax: Axes, panel: int, share: float, row: TableRow, count: int) -> str:
    """Draw the bars of one figure with their numbers, scaled to ``share`` of the panel; return the panel's label."""
    cells = row.cells[:count]
    values = [cell.value if isinstance(cell.value, int | float) else 0 for cell in cells]
    most = max(values)
    of_bytes = row.figure is not None and row.figure.unit == "bytes"
    size, unit = in_units(most) if of_bytes else in_thousands(most)
    widths = [share * value / most if most else 0 for value in values]
    label = NAMES.get(row.path, row.label)
    ax.barh(range(count), widths, 0.7, left=panel, color=COLOURS[panel % len(COLOURS)], linewidth=0, label=row.path)
    ax.axvline(panel, color=INK, linewidth=0.5)
    for place, (cell, width) in enumerate(zip(cells, widths)):
        ax.annotate(
            _number(cell, size), (panel + width, place), (2, 0), textcoords="offset points", va="center_baseline",
            fontsize=TEXT, color="black", fontweight="bold" if cell.best else "normal",
        )  # fmt: skip
    return f"{label}\n({unit})" if unit else label


def _number(cell: Cell, size: int) -> str:
    if not isinstance(cell.value, int | float):
        return "N/A"
    bound = "\N{GREATER-THAN OR EQUAL TO}" if cell.text.startswith(">=") else ""
    shown = cell.value / size
    return f"{bound}{shown:,.{0 if size == 1 else 1 if shown >= 100 else 2}f}"
