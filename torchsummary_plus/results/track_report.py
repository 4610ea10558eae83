"""TrackReport: a tracker's points and watched modules, with their tables, lines of text and other views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING

from ..data.errors import choice_error
from ..data.tracking_records import TensorGroup, Tracking, TrackPoint, WatchedModule
from ..data.units import mebibytes, one_line, size_text
from ..formats.table import Cell, Field, Table, TableRow, Value, shortened
from .views import Columns, Depth, Figures, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..formats.table import Table
    from ..render.figure import Place


@dataclass(frozen=True, slots=True)
class PointColumn:
    """A column of the points: its heading, its value, and its unit; "" for text."""

    heading: str
    value: Callable[[TrackPoint], Value]
    unit: str = "bytes"


def _total(groups: Iterable[TensorGroup]) -> int:
    return sum(group.nbytes for group in groups)


POINT_COLUMNS: dict[str, PointColumn] = {
    "where": PointColumn("Where", lambda point: f"{point.file}:{point.line} {point.function}", ""),
    "time": PointColumn("Time", lambda point: point.time, ""),
    "storages": PointColumn("Storages", lambda point: point.storages, "count"),
    "tensor_bytes": PointColumn("Tensors", lambda point: point.tensor_bytes),
    "appeared_bytes": PointColumn("Appeared", lambda point: _total(point.appeared)),
    "gone_bytes": PointColumn("Gone", lambda point: _total(point.gone)),
    "allocated_bytes": PointColumn("Allocated", lambda point: point.memory.allocated_bytes),
    "reserved_bytes": PointColumn("Reserved", lambda point: point.memory.reserved_bytes),
    "peak_bytes": PointColumn("Peak since last", lambda point: point.memory.peak_bytes),
    "used_bytes": PointColumn("Device used", lambda point: point.memory.used_bytes),
    "process_bytes": PointColumn("Process", lambda point: point.memory.process_bytes),
}

MODULE_FIGURES = {
    "calls": ("Calls", "count"),
    "added_bytes": ("Added", "bytes"),
    "own_bytes": ("Added, own", "bytes"),
    "highest_bytes": ("Most live at a call's end", "bytes"),
}


def tracking_tables(tracking: Tracking, columns: Iterable[str] | None = None) -> tuple[Table, ...]:
    """Return the table of points (by default with every known column but the time) and that of the watched modules.

    Raises :class:`InputError` for an unknown column.
    """
    if isinstance(columns, str):
        columns = (columns,)
    names = tuple(_known(tracking) if columns is None else columns)
    for name in names:
        if name not in POINT_COLUMNS:
            raise choice_error("column", name, POINT_COLUMNS)
    points = Table(
        title=f"Tensors on {tracking.device}",
        labels="Point",
        fields=tuple(Field(name, c.heading, c.unit, c.unit == "bytes") for name, c in _chosen(names)),
        rows=tuple(_point(number, point, names) for number, point in enumerate(tracking.points, 1)),
    )
    return (points, _modules(tracking.modules)) if tracking.modules else (points,)


def _known(tracking: Tracking) -> list[str]:
    wanted = [name for name in POINT_COLUMNS if name != "time"]
    return [name for name in wanted if any(POINT_COLUMNS[name].value(point) is not None for point in tracking.points)]


def _chosen(names: Iterable[str]) -> list[tuple[str, PointColumn]]:
    return [(name, POINT_COLUMNS[name]) for name in names]


def _point(number: int, point: TrackPoint, names: Iterable[str]) -> TableRow:
    cells = tuple(_cell(column.value(point), column.unit) for _, column in _chosen(names))
    return TableRow(point.label or str(number), f"{point.file}:{point.line}", 0, cells)


def _modules(modules: Iterable[WatchedModule]) -> Table:
    return Table(
        title="Modules watched",
        labels="Module (type)",
        fields=tuple(Field(name, label, unit, unit == "bytes") for name, (label, unit) in MODULE_FIGURES.items()),
        rows=tuple(
            TableRow(
                f"{module.path or '(root)'} ({module.class_name})",
                module.path,
                0,
                tuple(_cell(getattr(module, name), unit) for name, (_, unit) in MODULE_FIGURES.items()),
            )
            for module in modules
        ),
    )


def _cell(value: Value, unit: str) -> Cell:
    if value is None:
        return Cell(None, "N/A")
    if isinstance(value, int):
        return Cell(value, mebibytes(value) if unit == "bytes" else f"{value:,}")
    return Cell(value, str(value))


MOST_OWNERS = 3  # Maximum number of owners named on a line.
MOST_GROUPS = 5  # Maximum number of groups of tensors listed below a row.
ROW = "{:>3}  {:<33}  {:>11}  {:>11}  {:>11}"  # A row of the printed table, 77 characters wide.


def table_head(device: str) -> str:
    """Return the title and the headings of the printed table."""
    headings = ROW.format("", "Where", "Live", "Appeared", "Gone")
    return f"Live tensors on {device}\n{headings}\n{'-' * len(headings)}\n"


def table_row(number: int, point: TrackPoint, detail: bool = True) -> str:
    """Return a point's row: its place, the live bytes and the changes, with the largest groups of tensors below it."""
    where = shortened(one_line(f"{point.file}:{point.line} {point.label or point.function}"), 33)
    changes = (("+", point.appeared), ("-", point.gone))
    sums = [sum(group.nbytes for group in groups) for _, groups in changes]
    shown = [f"{sign}{size_text(nbytes)}" if nbytes else "" for (sign, _), nbytes in zip(changes, sums)]
    lines = [ROW.format(number, where, size_text(point.tensor_bytes), *shown).rstrip()]
    for sign, groups in changes if detail else ():
        lines += [one_line(_group(sign, group)) for group in groups[:MOST_GROUPS]]
        others = groups[MOST_GROUPS:]
        if others:
            lines.append(f"     {sign} {len(others):,} more, {size_text(sum(group.nbytes for group in others))}")
    return "".join(f"{line}\n" for line in lines)


def _group(sign: str, group: TensorGroup) -> str:
    count = f"{group.count:,} x " if group.count > 1 else ""
    of = ", ".join(group.owners[:1]) + (f" and {len(group.owners) - 1:,} more" if len(group.owners) > 1 else "")
    return f"     {sign} {count}{group.shape} {group.dtype}, {size_text(group.nbytes)}" + (f": {of}" if of else "")


def opening_text(point: TrackPoint) -> str:
    """Return the first line of a file."""
    return f"GPU Memory Track | {point.time} | {_totals(point)}\n\n"


def point_text(point: TrackPoint, detail: bool = True) -> str:
    """Return what appeared (+) and disappeared (-), aligned, then the call's line with the totals in binary units."""
    changes = [("+", group) for group in point.appeared] + [("-", group) for group in point.gone]
    widths = [max([least, *(len(_cells(group)[place]) for _, group in changes)]) for place, least in enumerate(WIDTHS)]
    where = f"{point.file} line {point.line}: {point.function}" + (f" ({point.label})" if point.label else "")
    where = one_line(where)
    lines = [_change(sign, group, widths) for sign, group in changes] if detail else []
    return "".join(f"{line}\n" for line in [*lines, "", f"At {where:<50} {_totals(point)}", ""])


WIDTHS = (3, 20, 10)  # Minimum widths of counts, sizes and bytes.


def _cells(group: TensorGroup) -> tuple[str, str, str]:
    """Return a group's count, size and bytes."""
    return str(group.count), str(group.shape), size_text(group.nbytes)


def _change(sign: str, group: TensorGroup, widths: Sequence[int]) -> str:
    kind = f"<class '{group.class_name}'>"
    owners = list(group.owners[:MOST_OWNERS]) + (["..."] if len(group.owners) > MOST_OWNERS else [])
    count, size, nbytes = _cells(group)
    cells = [
        f"{sign} | {count:>{widths[0]}} * Size:{size:<{widths[1]}}",
        f"Memory: {nbytes:>{widths[2]}}",
        f"{kind:<20}",
        f"torch.{group.dtype}",
        *([", ".join(owners)] if owners else []),
    ]
    return one_line(" | ".join(cells))


def _totals(point: TrackPoint) -> str:
    memory = point.memory
    texts = [f"Total Tensor Used Memory:{size_text(point.tensor_bytes):<11}"]
    for label, nbytes in (
        ("Total Allocated Memory", memory.allocated_bytes),
        ("Reserved Memory", memory.reserved_bytes),
        ("Peak Since Last", memory.peak_bytes),
        ("Device Used Memory", memory.used_bytes),
        ("Process Memory", memory.process_bytes),
    ):
        if nbytes is not None:
            texts.append(f"{label}:{size_text(nbytes):<11}")
    return " ".join(texts)


@dataclass(frozen=True, repr=False)
class TrackReport(Views, Figures, Tracking):
    """The result of :meth:`MemTracker.report`: immutable data, printed by ``str()`` and the other views.

    The main table has a row per point, with the columns ``where``, ``time``, ``storages``, ``tensor_bytes``,
    ``appeared_bytes``, ``gone_bytes``, ``allocated_bytes``, ``reserved_bytes``, ``peak_bytes``, ``used_bytes`` and
    ``process_bytes``; the second has the watched modules.

    >>> import io
    >>> import torch
    >>> from torchsummary_plus import MemTracker
    >>> tracker = MemTracker(stream=io.StringIO(), device="cpu")
    >>> before, scale, after = tracker.track("before"), torch.zeros(256), tracker.track("after")
    >>> [point.label for point in tracker.report().points]
    ['before', 'after']
    """

    def plot(self, *, ax: Axes | None = None, width: str | None = None) -> Axes:
        """Plot the bytes of tensors over the points, with the allocator's and the device's figures where known.

        Without ``ax`` a new figure is made, "column", "page" or "notebook" wide. Raises :class:`InputError` without
        points, :class:`MissingExtraError` without matplotlib.
        """
        return self._plot(ax, width)

    def _draw(self, place: Place) -> Axes:
        from ..render.timeline import draw_tracking

        return draw_tracking(self, place)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        return tracking_tables(self, None if isinstance(columns, EllipsisType) else columns)
