"""Bar charts: the heaviest layers, the modules that hold most of a peak, steps, and models side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import TextWrapper
from typing import Any

from ..data.answers import listed
from ..data.arguments import integer
from ..data.errors import choice_error
from ..data.units import one_line
from ..formats.table import Cell, TableRow
from ..memory.estimate import Estimate
from ..table.columns import check_layout, chosen_names
from ..table.lines import flat_lines
from ..table.rows import Report
from . import figure as fig
from .columns import COLUMNS
from .comparison_tables import Compared, figures_table
from .figure import Axes, Place

LABEL = 26  # Maximum characters of a layer's path, which leaves half a column for the bars.

MEASURES = {
    "num_params": "Parameters", "mult_adds": "Multiply-adds", "output_bytes": "Output",
    "saved_bytes": "Saved for backward", "grad_bytes": "Gradients", "optimizer_bytes": "Optimizer state",
}  # fmt: skip
"""The columns that can be plotted (those that add up over the lines), with their axis labels."""

VISIBLE = 0.005  # The smallest visible part of a bar, as a share of the longest bar (half a point).


Bar = tuple[str, "Counter[str]"]  # A label, and the length of each part of a stacked bar.


def draw_layers(report: Report, by: str, top: int, depth: int | None, place: Place) -> Axes:
    """Draw the table lines with the largest values of a column, coloured by class. Raises :class:`InputError`."""
    if by not in MEASURES:
        raise choice_error("by", by, MEASURES)
    check_layout("torchsummary", depth)
    chosen_names((by,), report.has_memory, report.is_sharded)
    column = COLUMNS[by]
    bars = []
    for line in flat_lines(report, depth):
        value = column.cell(line, report, "0").value
        if isinstance(value, int) and value:
            name = line.label if line.row.kind == "function" else line.row.path or line.row.class_name
            bars.append((name, Counter({line.row.class_name: value})))
    shown = heaviest(bars, top)
    classes = sum((parts for _, parts in shown), Counter[str]())
    named = [name for name, _ in classes.most_common(len(fig.CLASSES))]
    colours = dict(zip(named, fig.CLASSES)) | {name: fig.GREY for name in classes if name not in named}
    batch = "" if by == "num_params" else f", batch {report.run.batch_size or 1:,}"
    return _draw(shown, colours, MEASURES[by], column.unit, sum(parts.total() for _, parts in bars), place, batch)


def draw_holders(estimate: Estimate, top: int, depth: int | None, place: Place) -> Axes:
    """Draw the modules that hold most of the peak, by kind. Raises :class:`InputError`."""
    check_layout("torchsummary", depth)
    by_path: dict[str, Counter[str]] = {}
    for module in estimate.by_module:
        path = module.path if depth is None else ".".join(module.path.split(".")[:depth])
        by_path.setdefault(path, Counter()).update(_kinds(dict(module.at_peak)))
    bars = [(path or "(no layer)", parts) for path, parts in by_path.items() if parts.total()]
    batch = f", batch {estimate.info.batch_size:,}"
    return _draw(
        heaviest(bars, top), _kinds(fig.LAYERS), "Memory at the peak", "bytes", estimate.peak_bytes, place, batch
    )


def draw_steps(
    names: Sequence[str], estimates: Sequence[Estimate], place: Place, limits: Mapping[str, int] | None = None
) -> Axes:
    """Draw the peaks of steps by kind, in the given order, with lines at limits that are on the scale."""
    bars = [(name, Counter(_kinds(estimate.at_peak))) for name, estimate in zip(names, estimates)]
    batches = {estimate.info.batch_size * estimate.info.micro_batches for estimate in estimates}
    batch = f", batch {batches.pop():,}" if len(batches) == 1 else ""
    ax = _draw(bars, _kinds(fig.LAYERS), "Peak", "bytes", None, place, batch)
    size, _ = fig.in_units(max(parts.total() for _, parts in bars))
    right = ax.get_xlim()[1]
    off = [name for name, nbytes in (limits or {}).items() if nbytes / size > right]
    if off:
        ax.set_xlabel(f"{ax.get_xlabel()}; off scale: {listed(off)}")
    for name, nbytes in (limits or {}).items():
        if nbytes / size <= right:
            ax.axvline(nbytes / size, color=fig.LIMIT, linewidth=0.8, linestyle="--")
            fig.write(ax, name, (nbytes / size, 1), (0, 2), xycoords=ax.get_xaxis_transform(), ha="center",
                      va="bottom", color=fig.LIMIT, annotation_clip=False)  # fmt: skip
    return ax


def _kinds(by_kind: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping by kind with the kinds as words."""
    return {kind.replace("_", " "): value for kind, value in by_kind.items()}


def heaviest(bars: Sequence[Bar], top: int) -> list[Bar]:
    """Return the ``top`` longest bars, longest first, ties in order. Raises :class:`InputError`."""
    return sorted(bars, key=lambda bar: -bar[1].total())[: integer("top", top, 1)]


def _draw(
    bars: Sequence[Bar], colours: Mapping[str, str], what: str, unit: str, total: int | None, place: Place, batch: str
) -> Axes:
    """Draw stacked bars with their lengths beside them and, below, their share of the total and the batch."""
    labels, stacks = [fig.elided(label, LABEL) for label, _ in bars], [parts for _, parts in bars]
    lengths = [parts.total() for parts in stacks]
    most = max(lengths, default=0)
    there = [name for name in colours if any(name in parts for parts in stacks)]
    visible = {name for name in there if any(parts[name] >= VISIBLE * most for parts in stacks)}
    rows = -(-len(visible) // 3) if len(visible) > 1 else 0  # Of the legend.
    ax = place(0.5 + 0.14 * max(len(bars), 1) + (0.14 * rows + 0.05 if rows else 0))
    size, unit_name = fig.in_units(most, unit == "bytes")
    places = range(len(bars))
    starts = [0.0] * len(bars)
    for name in there:
        widths = [parts[name] / size for parts in stacks]
        shown = one_line(f" {name}" if name.startswith("_") else name)  # matplotlib hides names with an underscore.
        label = shown if name in visible else f"_{name}"
        ax.barh(places, widths, 0.8, left=starts, color=fig.fill_on(colours[name], ax), label=label, linewidth=0)
        starts = [start + width for start, width in zip(starts, widths)]
    for row, length in enumerate(lengths):
        at = length / size, row
        fig.write(ax, f"{length / size:,.2f}", at, (2, 0), va="center_baseline", bbox=fig.hiding(ax))
    ax.set_xlim(0, 1.2 * max(most, 1) / size)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    fig.tidy(ax)
    ax.set_yticks(places, labels, parse_math=False)
    ax.tick_params(axis="y", length=0)
    unit_name = f" ({unit_name})" if unit_name else ""
    share = 100 * sum(lengths) / max(total or 0, 1)
    of_all = "" if total is None else f": {total / size:,.2f} in all, {share:.0f} % shown"
    ax.set_xlabel(f"{what}{unit_name}{of_all}{batch}", fontsize=fig.TEXT, loc="right")
    if len(visible) > 1:
        fig.legend_below(ax, (0.3, 0), *ax.get_legend_handles_labels(), inches=0.4)
    return ax


NAMES = {
    "total_params": "Parameters", "trainable_params": "Trainable", "non_trainable_params": "Frozen",
    "total_mult_adds": "Mult-adds per sample", "forward_backward_bytes": "Forward/backward",
    "total_bytes": "Total size",
}  # fmt: skip
"""Short labels for figures whose usual label is too long for a panel."""

MEMORY = ("training_peak_bytes", "inference_peak_bytes", "total_bytes")
"""The figures for the memory panel, in order of preference: the first one known is shown."""

NAME = 18  # Maximum characters on a line of a model's name; longer names take several lines.
TITLE = 11  # The same for a panel's title.
PANELS = 3  # Maximum panels side by side; further panels go below.
LETTER = 0.058  # Inches of a letter, at ``TEXT`` points.
LINE = 0.13  # Inches of a line.
SIDES = 0.2  # Inches beside the panels: ticks and margins.
BREAKS = re.compile(r"(\s+)|(?<=[-/_.])")  # Where a name may be broken.


def draw_comparison(compared: Compared, figures: Sequence[str] | None, place: Place) -> Axes:
    """Draw figures of each model as bars; None: parameters, multiply-adds, memory. Raises :class:`InputError`."""
    chosen = [figures] if isinstance(figures, str) else None if figures is None else list(figures)
    known = {row.path: row for row in figures_table(compared, chosen).rows}
    if chosen is None:
        memory = next((name for name in MEMORY if name in known), None)
        known = {name: known[name] for name in ("total_params", "total_mult_adds", memory) if name in known}
    names = [wrapped(entry.name, NAME) for entry in compared.entries]
    count, last = len(names), (len(known) - 1) // PANELS
    titles, numbers = [], []
    for name, row in known.items():
        of_bytes = row.figure is not None and row.figure.unit == "bytes"
        size, unit = fig.in_units(max(map(_amount, row.cells[:count])), of_bytes)
        numbers.append([_number(cell, size) for cell in row.cells[:count]])
        titles.append(wrapped(f"{NAMES.get(name, row.label)}{f' ({unit})' if unit else ''}", TITLE))
    lines = max(1, *(name.count("\n") + 1 for name in names))
    step = count + (max(title.count("\n") + 1 for title in titles) + 0.5) / lines
    ax = place(0.1 + LINE * lines * step * (last + 1) + 0.05)
    longest = max(len(line) for name in names for line in name.split("\n"))
    panel_inches = (fig.COLUMN_WIDTH - SIDES - LETTER * longest) / min(PANELS, len(known))
    number_inches = LETTER * (max(len(text) for texts in numbers for text in texts) + 1.5)
    share = min(0.9, max(0.15, 1 - number_inches / panel_inches))  # Of a panel, for its longest bar.
    for number, row in enumerate(known.values()):
        band, panel = divmod(number, PANELS)
        _panel(ax, panel, band * step, share, row, numbers[number], fig.CLASSES[number % len(fig.CLASSES)])
    ax.set_xlim(0, min(PANELS, len(known)))
    ax.set_ylim(last * step + count - 0.5, -0.5)
    fig.tidy(ax)
    ax.spines["bottom"].set_visible(False)
    ax.spines["left"].set_visible(False)
    rows = [band * step + place for band in range(last + 1) for place in range(count)]
    ax.set_yticks(rows, names * (last + 1), parse_math=False)
    below = titles[last * PANELS :]
    ax.set_xticks([panel + share / 2 for panel in range(len(below))], below)
    for number, title in enumerate(titles[: last * PANELS]):
        at = (number % PANELS + share / 2, number // PANELS * step + count - 0.4)
        fig.write(ax, title, at, ha="center", va="top", annotation_clip=False)
    ax.tick_params(length=0)
    return ax


def wrapped(name: str, width: int) -> str:
    """Return a name on lines of at most ``width`` characters, broken after punctuation where it has some.

    >>> wrapped("facebook/convnext-tiny-224", 14)
    'facebook/\\nconvnext-tiny-\\n224'
    """
    wrapper = TextWrapper(width)
    wrapper.wordsep_re = BREAKS
    return "\n".join(wrapper.wrap(one_line(name)))


def _panel(ax: Axes, panel: int, top: float, share: float, row: TableRow, numbers: Sequence[str], colour: str) -> None:
    """Draw the bars of one figure with their numbers, scaled to ``share`` of the panel."""
    cells = row.cells[: len(numbers)]
    most = max(map(_amount, cells)) or 1
    widths, places = [share * _amount(cell) / most for cell in cells], [top + place for place in range(len(cells))]
    ax.barh(places, widths, 0.7, left=panel, color=colour, linewidth=0, label=row.path)
    ax.plot([panel, panel], [top - 0.5, top + len(cells) - 0.5], color=fig.ink(ax), linewidth=0.5)
    for place, cell, width, text in zip(places, cells, widths, numbers):
        fig.write(ax, text, (panel + width, place), (2, 0), va="center_baseline",
                  fontweight="bold" if cell.best else "normal")  # fmt: skip


def _amount(cell: Cell) -> float:
    return cell.value if isinstance(cell.value, int | float) else 0


def _number(cell: Cell, size: int) -> str:
    if not isinstance(cell.value, int | float):
        return "N/A"
    bound = "\N{GREATER-THAN OR EQUAL TO}" if cell.text.startswith(">=") else ""
    shown = cell.value / size
    return f"{bound}{shown:,.{0 if size == 1 else 1 if shown >= 100 else 2}f}"
