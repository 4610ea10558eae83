"""Bar charts, longest bar on top: a summary's heaviest layers, and the modules that hold most of an estimate's peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ..data.errors import choice_error
from ..data.integers import integer
from ..data.units import one_line
from ..memory.estimate import Estimate
from ..table.columns import check_view
from ..table.lines import Line, flat_lines
from ..table.rows import Report
from .columns import COLUMNS
from .figure import (
    CLASSES,
    GREY,
    LAYERS,
    TEXT,
    Place,
    elided,
    fill_on,
    hiding,
    in_thousands,
    in_units,
    ink,
    legend_below,
    limit_ink,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Value = TypeVar("Value")

LABEL = 26
"""Maximum characters of a layer's path, which leaves half a column for the bars."""

MEASURES = {
    "num_params": "Parameters",
    "mult_adds": "Multiply-adds",
    "output_bytes": "Output",
    "saved_bytes": "Saved for backward",
    "grad_bytes": "Gradients",
    "optimizer_bytes": "Optimizer state",
}
"""The columns that can be plotted (those that add up over the lines), with their axis labels."""

NAMED = 2
"""How many limits off the scale are named."""

VISIBLE = 0.005
"""The smallest visible part of a bar, as a share of the longest bar (half a point)."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled, stacked bar."""

    label: str
    parts: Mapping[str, int]

    @property
    def length(self) -> int:
        """Length of the whole bar."""
        return sum(self.parts.values())


def draw_layers(report: Report, by: str, top: int, depth: int | None, place: Place) -> Axes:
    """Draw the table lines with the largest values of a column, coloured by class. Raises :class:`InputError`."""
    if by not in MEASURES:
        raise choice_error("by", by, MEASURES)
    check_view("torchsummary", depth, (by,), report.has_memory, report.is_sharded)
    column = COLUMNS[by]
    bars = []
    for line in flat_lines(report, depth):
        value = column.cell(line, report, "0").value
        if isinstance(value, int) and value:
            bars.append(Bar(_name(line), {line.row.class_name: value}))
    shown = heaviest(bars, top)
    classes = Counter[str]()
    for bar in shown:
        classes.update(bar.parts)
    named = [name for name, _ in classes.most_common(len(CLASSES))]
    colours = dict(zip(named, CLASSES)) | {name: GREY for name in classes if name not in named}
    batch = "" if by == "num_params" else f", batch {report.run.batch_size or 1:,}"
    return _draw(shown, colours, MEASURES[by], column.unit, sum(bar.length for bar in bars), place, batch)


def draw_holders(estimate: Estimate, top: int, depth: int | None, place: Place) -> Axes:
    """Draw the modules that hold most of the peak, by kind. Raises :class:`InputError`."""
    check_view("torchsummary", depth, None)
    by_path: dict[str, Counter[str]] = {}
    for module in estimate.by_module:
        path = module.path if depth is None else ".".join(module.path.split(".")[:depth])
        by_path.setdefault(path, Counter()).update(_kinds(dict(module.at_peak)))
    bars = [Bar(path or "(no layer)", parts) for path, parts in by_path.items() if parts.total()]
    return _draw(
        heaviest(bars, top),
        _kinds(LAYERS),
        "Memory at the peak",
        "bytes",
        estimate.peak_bytes,
        place,
        f", batch {estimate.info.batch_size:,}",
    )


def draw_steps(
    names: Sequence[str], estimates: Sequence[Estimate], place: Place, limits: Mapping[str, int] | None = None
) -> Axes:
    """Draw the peaks of steps by kind, in the given order, with lines at limits that are on the scale."""
    bars = [Bar(name, _kinds(estimate.at_peak)) for name, estimate in zip(names, estimates)]
    batches = {estimate.info.batch_size * estimate.info.micro_batches for estimate in estimates}
    batch = f", batch {batches.pop():,}" if len(batches) == 1 else ""
    ax = _draw(bars, _kinds(LAYERS), "Peak", "bytes", None, place, batch)
    size, _ = in_units(max(bar.length for bar in bars))
    right = ax.get_xlim()[1]
    off = [name for name, nbytes in (limits or {}).items() if nbytes / size > right]
    if off:
        more = f" and {len(off) - NAMED:,} more" if len(off) > NAMED else ""
        ax.set_xlabel(f"{ax.get_xlabel()}; off scale: {', '.join(off[:NAMED])}{more}")
    for name, nbytes in (limits or {}).items():
        if nbytes / size <= right:
            ax.axvline(nbytes / size, color=limit_ink(ax), linewidth=0.8, linestyle="--")
            ax.annotate(
                name, (nbytes / size, 1), (0, 2), xycoords=ax.get_xaxis_transform(), textcoords="offset points",
                ha="center", va="bottom", fontsize=TEXT, color=limit_ink(ax), annotation_clip=False,
            )  # fmt: skip
    return ax


def _kinds(by_kind: Mapping[str, Value]) -> dict[str, Value]:
    """Return a mapping by kind with the kinds as words."""
    return {kind.replace("_", " "): value for kind, value in by_kind.items()}


def heaviest(bars: Sequence[Bar], top: int) -> list[Bar]:
    """Return the ``top`` longest bars, longest first, ties in order. Raises :class:`InputError`."""
    return sorted(bars, key=lambda bar: -bar.length)[: integer("top", top, 1)]


def _name(line: Line) -> str:
    return line.label if line.row.kind == "function" else line.row.path or line.row.class_name


def _draw(
    bars: Sequence[Bar], colours: Mapping[str, str], what: str, unit: str, total: int | None, place: Place,
    batch: str = "",
) -> Axes:  # fmt: skip
    """Draw stacked bars with their lengths beside them and, below, their share of the total and the batch."""
    most = max((bar.length for bar in bars), default=0)
    there = [name for name in colours if any(name in bar.parts for bar in bars)]
    visible = {name for name in there if any(bar.parts.get(name, 0) >= VISIBLE * most for bar in bars)}
    ax = place(height_of(len(bars), len(visible)))
    size, unit_name = in_units(most) if unit == "bytes" else in_thousands(most)
    places = range(len(bars))
    starts = [0.0] * len(bars)
    for name in there:
        widths = [bar.parts.get(name, 0) / size for bar in bars]
        label = _label(name) if name in visible else f"_{name}"
        ax.barh(places, widths, 0.8, left=starts, color=fill_on(colours[name], ax), label=label, linewidth=0)
        starts = [start + width for start, width in zip(starts, widths)]
    for row, bar in enumerate(bars):
        ax.annotate(f"{bar.length / size:,.2f}", (bar.length / size, row), (2, 0), textcoords="offset points",
                    va="center_baseline", fontsize=TEXT, color=ink(ax), bbox=hiding(ax))  # fmt: skip
    ax.set_xlim(0, 1.2 * max(most, 1) / size)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    tidy(ax)
    ax.set_yticks(places, [elided(bar.label, LABEL) for bar in bars], parse_math=False)
    ax.tick_params(axis="y", length=0)
    unit_name = f" ({unit_name})" if unit_name else ""
    share = 100 * sum(bar.length for bar in bars) / max(total or 0, 1)
    of_all = "" if total is None else f": {total / size:,.2f} in all, {share:.0f} % shown"
    ax.set_xlabel(f"{what}{unit_name}{of_all}{batch}", fontsize=TEXT, color=ink(ax), loc="right")
    if len(visible) > 1:
        legend_below(ax, (0.3, 0), *ax.get_legend_handles_labels(), inches=0.4)
    return ax


def _label(name: str) -> str:
    """Return a name that a legend shows: matplotlib hides names that begin with an underscore."""
    return one_line(f" {name}" if name.startswith("_") else name)


def height_of(bars: int, names: int) -> float:
    """Return the height in inches for a number of bars and a legend of ``names`` in rows of three."""
    return 0.5 + 0.14 * max(bars, 1) + (0.14 * -(-names // 3) + 0.05 if names > 1 else 0)
