"""Plots of memory: over a step, stacked by kind, with phases and peak; and over a tracker's points."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from ..data.errors import InputError
from ..data.tracking_records import TrackPoint
from ..data.units import describe
from ..memory.attribution import TimelinePoint
from ..memory.estimate import Estimate, room_of_log
from ..memory.gpus import named_gpu
from . import figure as fig
from .figure import Axes, Place

HEIGHT = 2.3
MOST_POINTS = 800  # Maximum number of points that a column can resolve: at 300 dpi, its axes are 840 dots wide.
BELOW_LIMIT = 0.91  # The height of the peak's name below that of a limit, in fractions of the axes.
FAR = 3  # A limit this many times higher than the highest point is not drawn to scale.


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a step, as a range of points of the timeline."""

    phase: str
    step: int
    start: int
    stop: int


def draw_timeline(
    estimate: Estimate, steps: int | Collection[int] | None, memory: int | float | str | None, place: Place
) -> Axes:
    """Plot memory over steps (numbered from 1); None is the last that reaches the peak. Raises :class:`InputError`."""
    points = chosen_points(estimate, steps)
    levels = [point.total_bytes for point in points]
    ax = place(HEIGHT)
    size, unit = fig.in_units(max(levels))
    positions = thinned(levels, MOST_POINTS)
    shown = [dict(points[place].live) for place in positions]
    kinds = [kind for kind in fig.LAYERS if any(level.get(kind) for level in shown)]
    at, last = [*positions, len(points)], [*shown, shown[-1]]
    ax.stackplot(
        at, [[level[kind] / size for level in last] for kind in kinds], step="post", linewidth=0,
        colors=[fig.fill_on(fig.LAYERS[kind], ax) for kind in kinds], labels=[kind.replace("_", " ") for kind in kinds],
    )  # fmt: skip
    outline = [levels[place] / size for place in (*positions, positions[-1])]
    ax.plot(at, outline, drawstyle="steps-post", color=fig.ink(ax), linewidth=0.4)
    top = max(levels) / size
    if memory is not None:
        top = _limit(ax, memory, estimate, top, size)
    ax.set_xlim(0, len(points))
    ax.set_ylim(0, (1.25 if memory is None else 1.4) * top)
    ax.set_ylabel(f"Memory, batch {estimate.info.batch_size:,} ({unit})", fontsize=fig.TEXT)
    _phases(ax, spans(points))
    _peak(ax, points, estimate, size, unit, 0.99 if memory is None else BELOW_LIMIT)
    fig.tidy(ax)
    handles, labels = ax.get_legend_handles_labels()
    fig.legend_below(ax, (0.5, 0), handles[::-1], labels[::-1], inches=0.22)
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


def spans(points: Sequence[TimelinePoint]) -> list[Span]:
    """Return the phases of the points, in order."""
    phases: list[Span] = []
    place = 0
    for (step, phase), run in groupby(points, key=lambda point: (point.step, point.phase)):
        stop = place + sum(1 for _ in run)
        phases.append(Span(phase, step, place, stop))
        place = stop
    return phases


def _limit(ax: Axes, memory: int | float | str, estimate: Estimate, top: float, size: int) -> float:
    """Draw a line at the memory that the allocator can use, and return the top of the axes that it needs.

    Its label is at the very top, so that the peak's leader line crosses no text. A limit far above the highest point
    gets only a label, since drawn to scale it would flatten the plot.
    """
    gpu = named_gpu(memory)
    nbytes = max(0, room_of_log(estimate.log, estimate.backend, memory, estimate.info.gpu))
    unit, unit_name = fig.in_units(nbytes)
    name = (gpu.name if gpu is not None else "limit") + (" less its context" if estimate.backend == "cuda" else "")
    text, level = f"{name}: {nbytes / unit:.2f} {unit_name}", nbytes / size
    far = level > FAR * top
    if not far:
        ax.axhline(level, color=fig.LIMIT, linewidth=0.9, linestyle=(0, (4, 2)))
    said = f"{text}, far above" if far else f"{text} (dashed)"
    fig.write(ax, said, (0.02, 0.99), xycoords="axes fraction", va="top", color=fig.LIMIT, parse_math=False,
              bbox=fig.hiding(ax), zorder=4)  # fmt: skip
    return top if far else max(top, level)


def _peak(ax: Axes, points: Sequence[TimelinePoint], estimate: Estimate, size: int, unit: str, height: float) -> None:
    """Mark the first highest point with a dot and, near the top, its level, layer and reserved memory."""
    place = max(range(len(points)), key=lambda place: points[place].total_bytes)
    point = points[place]
    level, right = point.total_bytes / size, place > len(points) / 2
    whole = estimate.backend == "cuda" and point.total_bytes == estimate.peak_bytes
    reserved = f" (reserved {estimate.reserved_bytes / size:.2f})" if whole else ""
    where = fig.elided(point.module, 24) or point.operator.rpartition("::")[2]
    ax.plot([place + 0.5], [level], "o", color=fig.ink(ax), markersize=3, clip_on=False)
    fig.write(
        ax, f"peak {level:.2f} {unit}{reserved}: {where}", (place + 0.5, level), (0.98 if right else 0.02, height),
        textcoords="axes fraction", ha="right" if right else "left", va="top", parse_math=False, bbox=fig.hiding(ax),
        arrowprops={"arrowstyle": "-", "color": fig.ink(ax), "linewidth": 0.4, "relpos": (0.5, 0)},
    )  # fmt: skip


def _phases(ax: Axes, spans: Sequence[Span]) -> None:
    """Draw a line at the end of each phase, and the names of the phases that have room, longest phases first."""
    end = spans[-1].stop
    for span in spans[:-1]:
        ax.axvline(span.stop, color=fig.ink(ax), linewidth=0.4, linestyle=(0, (1, 1)))
    several = spans[0].step != spans[-1].step
    ticks: dict[float, tuple[float, str]] = {}
    for span in sorted(spans, key=lambda span: span.start - span.stop):
        name = f"{span.phase} {span.step + 1}" if several else span.phase
        half = end * 0.5 * len(name) * 0.55 * fig.TEXT / 72 / (0.8 * fig.COLUMN_WIDTH)
        centre = min(max((span.start + span.stop) / 2, half), end - half)
        is_free = all(half + other <= abs(centre - at) for at, (other, _) in ticks.items())
        if span.phase != "setup" and is_free:
            ticks[centre] = half, name
    ax.set_xticks(list(ticks), [name for _, name in ticks.values()])
    ax.tick_params(axis="x", length=0)


HEIGHT_OF_TRACKING = 2.0  # Height of the axes in inches, without the tick labels.

LINES = (
    ("Allocated", fig.ORANGE, "-", "allocated_bytes"),
    ("Peak since last", fig.VERMILLION, ":", "peak_bytes"),
    ("Reserved", fig.BLACK, "--", "reserved_bytes"),
    ("Device used", fig.SKY, "-.", "used_bytes"),
)
"""Lines drawn over the tensors if known: label, colour, line style and field of the device's memory."""


def draw_tracking(device: str, points: Sequence[TrackPoint], place: Place) -> Axes:
    """Plot the tensors' bytes as a filled line over the labelled points. Raises :class:`InputError` without points."""
    if not points:
        raise InputError("nothing has been tracked yet; call track() at least once before the report")
    known = {name: [getattr(point.memory, field) for point in points] for name, _, _, field in LINES}
    values = [value for line in known.values() for value in line if value is not None]
    size, unit = fig.in_units(max([*values, *(point.tensor_bytes for point in points)]))
    ax = place(HEIGHT_OF_TRACKING)
    at = range(1, len(points) + 1)
    tensors = [point.tensor_bytes / size for point in points]
    ax.fill_between(at, tensors, color=fig.GREEN, alpha=0.35, linewidth=0)
    handles = ax.plot(at, tensors, color=fig.GREEN, marker="o", markersize=2.5, linewidth=1)
    labels = ["Tensors"]
    for name, color, dashes, _ in LINES:
        if None not in known[name]:
            heights = [value / size for value in known[name]]
            handles += ax.plot(at, heights, color=fig.fill_on(color, ax), linestyle=dashes, linewidth=1)
            labels.append(name)
    ax.set_xticks(list(at), [fig.elided(point.label or f"line {point.line}", 16) for point in points], parse_math=False)
    ax.tick_params(axis="x", labelrotation=45 if len(points) > 4 else 0)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"{device} ({unit})", fontsize=fig.TEXT)
    fig.tidy(ax)
    if len(labels) > 1:
        fig.legend_below(ax, (0.5, 1.25), handles, labels)
    return ax
