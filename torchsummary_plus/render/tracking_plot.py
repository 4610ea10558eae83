"""A plot of a tracker's points: bytes of tensors, with the allocator's and the device's figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..data.errors import InputError
from ..data.tracking_records import Tracking, TrackPoint
from .figure import BLACK, GREEN, ORANGE, SKY, TEXT, VERMILLION, Place, elided, fill_on, in_units, legend_below, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 2.0
"""Height of the axes in inches, without the tick labels."""

LINES: tuple[tuple[str, str, str, Callable[[TrackPoint], int | None]], ...] = (
    ("Allocated", ORANGE, "-", lambda point: point.memory.allocated_bytes),
    ("Peak since last", VERMILLION, ":", lambda point: point.memory.peak_bytes),
    ("Reserved", BLACK, "--", lambda point: point.memory.reserved_bytes),
    ("Device used", SKY, "-.", lambda point: point.memory.used_bytes),
)
"""Lines drawn over the tensors if known: label, colour, line style and value."""


def draw_tracking(tracking: Tracking, place: Place) -> Axes:
    """Plot the tensors' bytes as a filled line over the labelled points. Raises :class:`InputError` without points."""
    points = tracking.points
    if not points:
        raise InputError("nothing has been tracked yet; call track() at least once before the report")
    known = {name: [read(point) for point in points] for name, _, _, read in LINES}
    values = [value for line in known.values() for value in line if value is not None]
    size, unit = in_units(max([*values, *(point.tensor_bytes for point in points)]))
    ax = place(HEIGHT)
    at = range(1, len(points) + 1)
    tensors = [point.tensor_bytes / size for point in points]
    ax.fill_between(at, tensors, color=GREEN, alpha=0.35, linewidth=0)
    handles = ax.plot(at, tensors, color=GREEN, marker="o", markersize=2.5, linewidth=1)
    labels = ["Tensors"]
    for name, color, dashes, _ in LINES:
        if all(value is not None for value in known[name]):
            heights = [(value or 0) / size for value in known[name]]
            handles += ax.plot(at, heights, color=fill_on(color, ax), linestyle=dashes, linewidth=1)
            labels.append(name)
    ax.set_xticks(list(at), [elided(point.label or f"line {point.line}", 16) for point in points], parse_math=False)
    ax.tick_params(axis="x", labelrotation=45 if len(points) > 4 else 0)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"{tracking.device} ({unit})", fontsize=TEXT)
    tidy(ax)
    if len(labels) > 1:
        legend_below(ax, (0.5, 1.25), handles, labels)
    return ax
