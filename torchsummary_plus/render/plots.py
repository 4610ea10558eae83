"""Plots with matplotlib: bars of layers, modules, steps and models, memory over a step, and a tracker's points."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from io import BytesIO
from itertools import groupby, pairwise
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from ..data.answers import listed
from ..data.arguments import integer
from ..data.errors import InputError, choice_error, need_extra
from ..data.units import describe, one_line
from ..formats.table import Cell
from ..memory.attribution import TimelinePoint
from ..memory.estimate import Estimate, room_of_log
from ..memory.gpus import named_gpu
from ..table.columns import check_layout, chosen_names
from ..table.lines import flat_lines
from ..table.rows import Report
from .columns import COLUMNS
from .tables import Entry, figures_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Place = Callable[[float], "Axes"]  # Where to draw: height in inches -> axes, which may have another height.
COLUMN_WIDTH = 3.3  # Width in inches of a column in a two-column paper (3.25 at ICML, 3.5 at IEEE).

WIDTHS = {"column": (COLUMN_WIDTH, None), "page": (6.8, None), "notebook": (4.8, 160)}
"""Widths of figures: inches, and the dots per inch of a screen (None for matplotlib's). "column" is the default."""

TEXT = 7.0  # Font size in points; papers require at least 6 to 8 in figures.

BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILLION, PURPLE, BLACK = "#E69F00", "#D55E00", "#CC79A7", "#000000"
"""Okabe and Ito's palette (2008), distinguishable with every common colour vision deficiency."""

GREY = "#CCCCCC"
LIMIT = "#C25500"  # With a contrast of 4.5 to 1 on white and on black.

LAYERS = {
    "parameters": BLUE, "buffers": PURPLE, "optimizer_state": SKY, "gradients": VERMILLION, "inputs": YELLOW,
    "saved_activations": GREEN, "temporaries": ORANGE, "workspace": BLACK,
    "kv_cache": "#7B3294", "unsharded_parameters": "#004B6E", "all_gather_buffers": "#8FA6B2",
    "reduce_scatter_buffers": "#6B2E00", "buckets": "#B39B7D",
}  # fmt: skip
"""The colour of each kind of memory, in stacking order: persistent kinds below transient ones.

Those that only generation and a rank of a distributed step have lie on top.
"""

CLASSES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW)


def placed(ax: Axes | Place | None, width: str | None, figure: Any = None) -> Place:
    """Return where to draw: given axes, a file's figure, or a new one of pyplot's. Raises :class:`InputError`."""
    if ax is not None and width is not None:
        raise InputError("width is of a new figure; set the size of the figure that ax= is in")
    if width not in (None, *WIDTHS):
        raise choice_error("width", width, WIDTHS)
    inches, dpi = WIDTHS[width or "column"]

    def place(height: float) -> Axes:
        own = figure or need_extra("matplotlib.pyplot", "plot").figure(layout="constrained", dpi=dpi)
        own.set_size_inches(inches, height)
        axes: Axes = own.subplots()
        return axes

    return place if ax is None else ax if callable(ax) else lambda height: ax


def ink(ax: Axes) -> Any:
    """Return the colour of text and lines on axes: that of their labels, which a dark style makes light."""
    return ax.xaxis.label.get_color()


def hiding(ax: Axes) -> dict[str, Any]:
    """Return the box behind text that hides the lines below it."""
    return {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 0.3}


def fill_on(colour: str, ax: Axes) -> Any:
    """Return a fill colour for axes: on those of a dark style, black becomes light."""
    return ink(ax) if colour == BLACK else colour


def write(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float] | None = None, **how: Any) -> None:
    """Write small text at a point, or so many points beside it."""
    ax.annotate(text, at, offset, fontsize=TEXT, **{"color": ink(ax), "textcoords": offset and "offset points", **how})


def tidy(ax: Axes) -> None:
    """Style axes with small text, thin lines and no spines at the top and right."""
    ax.tick_params(labelsize=TEXT, width=0.5, length=2.5)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_linewidth(0.5)


def legend_below(
    ax: Axes, at: tuple[float, float], handles: Sequence[Any], labels: Sequence[str], inches: float = 0
) -> None:
    """Add a legend in rows of three, centred ``inches`` below the point ``at`` in axes fractions."""
    down = need_extra("matplotlib.transforms", "plot").ScaledTranslation(0, -inches, ax.figure.dpi_scale_trans)
    legend = ax.legend(
        handles, labels, loc="upper center", bbox_to_anchor=at, bbox_transform=ax.transAxes + down, ncols=3,
        frameon=False, fontsize=TEXT, handlelength=1, handleheight=1, columnspacing=1, handletextpad=0.5,
        borderaxespad=0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def figure_file(draw: Callable[[Place], Axes], kind: str, width: str | None = None) -> bytes:
    """Draw a figure without pyplot and return it as a file: vectors with embedded TrueType fonts, or 300 dpi."""
    matplotlib = need_extra("matplotlib", "plot")
    figure = need_extra("matplotlib.figure", "plot").Figure(layout="constrained")
    draw(placed(None, width, figure))
    file = BytesIO()
    undated: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    # matplotlib reads the font type from its rcParams only, so they are set while saving.
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "torchsummary_plus"}):
        figure.savefig(file, format=kind, dpi=300, metadata=undated.get(kind))
    return file.getvalue()


def in_units(most: float, of_bytes: bool = True) -> tuple[int, str]:
    """Return the unit that suits figures up to ``most``: its size and name, binary for bytes.

    >>> in_units(3 * 1024**3), in_units(25_557_032, of_bytes=False)
    ((1073741824, 'GiB'), (1000000, 'M'))
    """
    base, names = (1024, ["bytes", "KiB", "MiB", "GiB", "TiB"]) if of_bytes else (1000, ["", *"kMGTP"])
    power = 0
    while most >= base and power < len(names) - 1:
        most, power = most / base, power + 1
    return base**power, names[power]


def elided(text: str, room: int) -> str:
    """Shorten a path to ``room`` characters by cutting its middle and keeping most of its end.

    >>> elided("model.decoder.layers.11.mlp.down_proj", 24)
    'model.d…11.mlp.down_proj'
    """
    text = one_line(text)
    if len(text) <= room:
        return text
    head = (room - 1) // 3
    return f"{text[:head]}…{text[len(text) - (room - 1 - head) :]}"


LABEL = 26  # Maximum characters of a layer's path, which leaves half a column for the bars.

MEASURES = {
    "num_params": "Parameters", "mult_adds": "Multiply-adds", "output_bytes": "Output",
    "saved_bytes": "Saved for backward", "grad_bytes": "Gradients", "optimizer_bytes": "Optimizer state",
}  # fmt: skip
"""The columns that can be plotted (those that add up over the lines), with their axis labels."""

VISIBLE = 0.005  # The smallest visible part of a bar, as a share of the longest bar (half a point).


Bar = tuple[str, "Counter[str]"]  # A label, and the length of each part of a stacked bar.
Phase = tuple[str, int, int, int]  # A phase of a step: its name, the step's number, and its range of points.


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
    named = [name for name, _ in classes.most_common(len(CLASSES))]
    colours = dict(zip(named, CLASSES)) | {name: GREY for name in classes if name not in named}
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
    return _draw(heaviest(bars, top), _kinds(LAYERS), "Memory at the peak", "bytes", estimate.peak_bytes, place, batch)


def draw_steps(
    names: Sequence[str], estimates: Sequence[Estimate], place: Place, limits: Mapping[str, int] | None = None
) -> Axes:
    """Draw the peaks of steps by kind, in the given order, with lines at limits that are on the scale."""
    bars = [(name, Counter(_kinds(estimate.at_peak))) for name, estimate in zip(names, estimates)]
    batches = {estimate.info.batch_size * estimate.info.micro_batches for estimate in estimates}
    batch = f", batch {batches.pop():,}" if len(batches) == 1 else ""
    ax = _draw(bars, _kinds(LAYERS), "Peak", "bytes", None, place, batch)
    size, _ = in_units(max(parts.total() for _, parts in bars))
    right = ax.get_xlim()[1]
    off = [name for name, nbytes in (limits or {}).items() if nbytes / size > right]
    if off:
        ax.set_xlabel(f"{ax.get_xlabel()}; off scale: {listed(off)}")
    for name, nbytes in (limits or {}).items():
        if nbytes / size <= right:
            ax.axvline(nbytes / size, color=LIMIT, linewidth=0.8, linestyle="--")
            write(ax, name, (nbytes / size, 1), (0, 2), xycoords=ax.get_xaxis_transform(), ha="center",
                  va="bottom", color=LIMIT, annotation_clip=False)  # fmt: skip
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
    labels, stacks = [elided(label, LABEL) for label, _ in bars], [parts for _, parts in bars]
    lengths = [parts.total() for parts in stacks]
    most = max(lengths, default=0)
    there = [name for name in colours if any(name in parts for parts in stacks)]
    visible = {name for name in there if any(parts[name] >= VISIBLE * most for parts in stacks)}
    rows = -(-len(visible) // 3) if len(visible) > 1 else 0  # Of the legend.
    ax = place(0.5 + 0.14 * max(len(bars), 1) + (0.14 * rows + 0.05 if rows else 0))
    size, unit_name = in_units(most, unit == "bytes")
    places = range(len(bars))
    starts = [0.0] * len(bars)
    for name in there:
        widths = [parts[name] / size for parts in stacks]
        shown = one_line(f" {name}" if name.startswith("_") else name)  # matplotlib hides names with an underscore.
        label = shown if name in visible else f"_{name}"
        ax.barh(places, widths, 0.8, left=starts, color=fill_on(colours[name], ax), label=label, linewidth=0)
        starts = [start + width for start, width in zip(starts, widths)]
    for row, length in enumerate(lengths):
        at = length / size, row
        write(ax, f"{length / size:,.2f}", at, (2, 0), va="center_baseline", bbox=hiding(ax))
    ax.set_xlim(0, 1.2 * max(most, 1) / size)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    tidy(ax)
    ax.set_yticks(places, labels, parse_math=False)
    ax.tick_params(axis="y", length=0)
    unit_name = f" ({unit_name})" if unit_name else ""
    share = 100 * sum(lengths) / max(total or 0, 1)
    of_all = "" if total is None else f": {total / size:,.2f} in all, {share:.0f} % shown"
    ax.set_xlabel(f"{what}{unit_name}{of_all}{batch}", fontsize=TEXT, loc="right")
    if len(visible) > 1:
        legend_below(ax, (0.3, 0), *ax.get_legend_handles_labels(), inches=0.4)
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


def draw_comparison(entries: Sequence[Entry], figures: Sequence[str] | None, place: Place) -> Axes:
    """Draw figures of each model as bars; None: parameters, multiply-adds, memory. Raises :class:`InputError`."""
    known = {row.path: row for row in figures_table(entries, figures).rows}
    if figures is None:
        memory = next((name for name in MEMORY if name in known), None)
        known = {name: known[name] for name in ("total_params", "total_mult_adds", memory) if name in known}
    names = [wrapped(entry.name, NAME) for entry in entries]
    count, last = len(names), (len(known) - 1) // PANELS
    titles, numbers = [], []
    for name, row in known.items():
        of_bytes = row.figure is not None and row.figure.unit == "bytes"
        size, unit = in_units(max(map(_amount, row.cells[:count])), of_bytes)
        numbers.append([_number(cell, size) for cell in row.cells[:count]])
        titles.append(wrapped(f"{NAMES.get(name, row.label)}{f' ({unit})' if unit else ''}", TITLE))
    lines = max(1, *(name.count("\n") + 1 for name in names))
    step = count + (max(title.count("\n") + 1 for title in titles) + 0.5) / lines
    ax = place(0.1 + LINE * lines * step * (last + 1) + 0.05)
    longest = max(len(line) for name in names for line in name.split("\n"))
    panel_inches = (COLUMN_WIDTH - SIDES - LETTER * longest) / min(PANELS, len(known))
    number_inches = LETTER * (max(len(text) for texts in numbers for text in texts) + 1.5)
    share = min(0.9, max(0.15, 1 - number_inches / panel_inches))  # Of a panel, for its longest bar.
    for number, (row, texts) in enumerate(zip(known.values(), numbers)):
        band, panel = divmod(number, PANELS)
        top, most = band * step, max(map(_amount, row.cells[:count])) or 1
        widths = [share * _amount(cell) / most for cell in row.cells[:count]]
        places, colour = [top + place for place in range(count)], CLASSES[number % len(CLASSES)]
        ax.barh(places, widths, 0.7, left=panel, color=colour, linewidth=0, label=row.path)
        ax.plot([panel, panel], [top - 0.5, top + count - 0.5], color=ink(ax), linewidth=0.5)
        for y, cell, width, text in zip(places, row.cells, widths, texts):
            weight = "bold" if cell.best else "normal"
            write(ax, text, (panel + width, y), (2, 0), va="center_baseline", fontweight=weight)
    ax.set_xlim(0, min(PANELS, len(known)))
    ax.set_ylim(last * step + count - 0.5, -0.5)
    tidy(ax)
    ax.spines["bottom"].set_visible(False)
    ax.spines["left"].set_visible(False)
    rows = [band * step + place for band in range(last + 1) for place in range(count)]
    ax.set_yticks(rows, names * (last + 1), parse_math=False)
    below = titles[last * PANELS :]
    ax.set_xticks([panel + share / 2 for panel in range(len(below))], below)
    for number, title in enumerate(titles[: last * PANELS]):
        at = (number % PANELS + share / 2, number // PANELS * step + count - 0.4)
        write(ax, title, at, ha="center", va="top", annotation_clip=False)
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


def _amount(cell: Cell) -> float:
    return cell.value if isinstance(cell.value, int | float) else 0


def _number(cell: Cell, size: int) -> str:
    if not isinstance(cell.value, int | float):
        return "N/A"
    bound = "\N{GREATER-THAN OR EQUAL TO}" if cell.text.startswith(">=") else ""
    shown = cell.value / size
    return f"{bound}{shown:,.{0 if size == 1 else 1 if shown >= 100 else 2}f}"


MOST_POINTS = 800  # Maximum number of points that a column can resolve: at 300 dpi, its axes are 840 dots wide.
BELOW_LIMIT = 0.91  # The height of the peak's name below that of a limit, in fractions of the axes.
FAR = 3  # A limit this many times higher than the highest point is not drawn to scale.


def draw_timeline(
    estimate: Estimate, steps: int | Collection[int] | None, memory: int | float | str | None, place: Place
) -> Axes:
    """Plot memory over steps (numbered from 1); None is the last that reaches the peak. Raises :class:`InputError`."""
    points = chosen_points(estimate, steps)
    levels = [point.total_bytes for point in points]
    ax = place(2.3)
    size, unit = in_units(max(levels))
    positions = thinned(levels, MOST_POINTS)
    shown = [dict(points[place].live) for place in positions]
    kinds = [kind for kind in LAYERS if any(level.get(kind) for level in shown)]
    at, last = [*positions, len(points)], [*shown, shown[-1]]
    ax.stackplot(
        at, [[level[kind] / size for level in last] for kind in kinds], step="post", linewidth=0,
        colors=[fill_on(LAYERS[kind], ax) for kind in kinds], labels=[kind.replace("_", " ") for kind in kinds],
    )  # fmt: skip
    outline = [levels[place] / size for place in (*positions, positions[-1])]
    ax.plot(at, outline, drawstyle="steps-post", color=ink(ax), linewidth=0.4)
    top = max(levels) / size
    if memory is not None:
        top = _limit(ax, memory, estimate, top, size)
    ax.set_xlim(0, len(points))
    ax.set_ylim(0, (1.25 if memory is None else 1.4) * top)
    ax.set_ylabel(f"Memory, batch {estimate.info.batch_size:,} ({unit})", fontsize=TEXT)
    _name_phases(ax, phases_of(points))
    _peak(ax, points, estimate, size, unit, 0.99 if memory is None else BELOW_LIMIT)
    tidy(ax)
    handles, labels = ax.get_legend_handles_labels()
    legend_below(ax, (0.5, 0), handles[::-1], labels[::-1], inches=0.22)
    return ax


def chosen_points(estimate: Estimate, steps: int | Collection[int] | None) -> list[TimelinePoint]:
    """Return the points of steps (1 is the first, 0 the setup before it); None is the last that reaches the peak."""
    points = estimate.timeline
    there = sorted({point.step + 1 for point in points})
    if steps is None:
        wanted = [max(point.step + 1 for point in points if point.total_bytes == estimate.peak_bytes)]
    else:
        wanted = [steps] if isinstance(steps, int) else list(steps)
    if not wanted or not set(wanted) <= set(there):
        raise InputError(f"steps is {describe(steps)}; accepted: None, or some of {', '.join(map(str, there))}")
    return [point for point in points if point.step + 1 in wanted]


def thinned(levels: Sequence[int], most: int) -> list[int]:
    """Return the positions of at most ``most`` points that keep a curve's outline: each stretch's extremes."""
    if len(levels) <= most:
        return list(range(len(levels)))
    edges = [len(levels) * part // (most // 2) for part in range(most // 2 + 1)]
    positions: set[int] = set()
    for start, stop in pairwise(edges):
        stretch = range(start, stop)
        positions |= {max(stretch, key=levels.__getitem__), min(stretch, key=levels.__getitem__)}
    return sorted(positions)


def phases_of(points: Sequence[TimelinePoint]) -> list[Phase]:
    """Return the phases of the points, in order."""
    phases: list[Phase] = []
    for (step, name), run in groupby(points, key=lambda point: (point.step, point.phase)):
        start = phases[-1][-1] if phases else 0
        phases.append((name, step, start, start + len([*run])))
    return phases


def _limit(ax: Axes, memory: int | float | str, estimate: Estimate, top: float, size: int) -> float:
    """Draw a line at the memory that the allocator can use, and return the top of the axes that it needs.

    Its label is at the very top, so that the peak's leader line crosses no text. A limit far above the highest point
    gets only a label, since drawn to scale it would flatten the plot.
    """
    gpu = named_gpu(memory)
    nbytes = max(0, room_of_log(estimate.log, estimate.backend, memory, estimate.info.gpu))
    unit, unit_name = in_units(nbytes)
    name = (gpu.name if gpu is not None else "limit") + (" less its context" if estimate.backend == "cuda" else "")
    text, level = f"{name}: {nbytes / unit:.2f} {unit_name}", nbytes / size
    far = level > FAR * top
    if not far:
        ax.axhline(level, color=LIMIT, linewidth=0.9, linestyle=(0, (4, 2)))
    said = f"{text}, far above" if far else f"{text} (dashed)"
    write(ax, said, (0.02, 0.99), xycoords="axes fraction", va="top", color=LIMIT, parse_math=False,
          bbox=hiding(ax), zorder=4)  # fmt: skip
    return top if far else max(top, level)


def _peak(ax: Axes, points: Sequence[TimelinePoint], estimate: Estimate, size: int, unit: str, height: float) -> None:
    """Mark the first highest point with a dot and, near the top, its level, layer and reserved memory."""
    place = max(range(len(points)), key=lambda place: points[place].total_bytes)
    point = points[place]
    level, right = point.total_bytes / size, place > len(points) / 2
    whole = estimate.backend == "cuda" and point.total_bytes == estimate.peak_bytes
    reserved = f" (reserved {estimate.reserved_bytes / size:.2f})" if whole else ""
    where = elided(point.module, 24) or point.operator.rpartition("::")[2]
    ax.plot([place + 0.5], [level], "o", color=ink(ax), markersize=3, clip_on=False)
    write(
        ax, f"peak {level:.2f} {unit}{reserved}: {where}", (place + 0.5, level), (0.98 if right else 0.02, height),
        textcoords="axes fraction", ha="right" if right else "left", va="top", parse_math=False, bbox=hiding(ax),
        arrowprops={"arrowstyle": "-", "color": ink(ax), "linewidth": 0.4, "relpos": (0.5, 0)},
    )  # fmt: skip


def _name_phases(ax: Axes, phases: Sequence[Phase]) -> None:
    """Draw a line at the end of each phase, and the names of the phases that have room, longest phases first."""
    (_, first, _, _), (_, last, _, end) = phases[0], phases[-1]
    for *_, stop in phases[:-1]:
        ax.axvline(stop, color=ink(ax), linewidth=0.4, linestyle=(0, (1, 1)))
    ticks: dict[float, tuple[float, str]] = {}
    for phase, step, start, stop in sorted(phases, key=lambda phase: phase[2] - phase[3]):
        name = phase if first == last else f"{phase} {step + 1}"
        half = end * 0.5 * len(name) * 0.55 * TEXT / 72 / (0.8 * COLUMN_WIDTH)
        centre = min(max((start + stop) / 2, half), end - half)
        if phase != "setup" and all(half + other <= abs(centre - at) for at, (other, _) in ticks.items()):
            ticks[centre] = half, name
    ax.set_xticks(list(ticks), [name for _, name in ticks.values()])
    ax.tick_params(axis="x", length=0)


LINES = (
    ("Allocated", ORANGE, "-", "allocated_bytes"),
    ("Peak since last", VERMILLION, ":", "peak_bytes"),
    ("Reserved", BLACK, "--", "reserved_bytes"),
    ("Device used", SKY, "-.", "used_bytes"),
)
"""Lines drawn over the tensors if known: label, colour, line style and field of the device's memory."""


def draw_tracking(device: str, points: Sequence[Any], place: Place) -> Axes:
    """Plot the tensors' bytes as a filled line over the labelled points. Raises :class:`InputError` without points."""
    if not points:
        raise InputError("nothing has been tracked yet; call track() at least once before the report")
    lines = [[getattr(point.memory, field) for point in points] for *_, field in LINES]
    values = [value for line in lines for value in line if value is not None]
    size, unit = in_units(max([*values, *(point.tensor_bytes for point in points)]))
    ax = place(2.0)
    at = range(1, len(points) + 1)
    tensors = [point.tensor_bytes / size for point in points]
    ax.fill_between(at, tensors, color=GREEN, alpha=0.35, linewidth=0)
    handles = ax.plot(at, tensors, color=GREEN, marker="o", markersize=2.5, linewidth=1)
    labels = ["Tensors"]
    for (name, color, dashes, _), line in zip(LINES, lines):
        if None not in line:
            heights = [value / size for value in line]
            handles += ax.plot(at, heights, color=fill_on(color, ax), linestyle=dashes, linewidth=1)
            labels.append(name)
    ax.set_xticks(list(at), [elided(point.label or f"line {point.line}", 16) for point in points], parse_math=False)
    ax.tick_params(axis="x", labelrotation=45 if len(points) > 4 else 0)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"{device} ({unit})", fontsize=TEXT)
    tidy(ax)
    if len(labels) > 1:
        legend_below(ax, (0.5, 1.25), handles, labels)
    return ax
