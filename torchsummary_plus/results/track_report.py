"""TrackReport: a tracker's points and watched modules, with their tables, lines of text and other views."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from ..data.errors import choice_error
from ..data.units import one_line, size_text
from ..formats.table import Field, Table, TableRow, Value, cells, shortened
from ..render.plots import draw_tracking, placed
from .views import Chosen, Figures, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Storages of one shape, dtype and class: their number, total bytes, and owners where known."""

    shape: tuple[int, ...]
    dtype: str
    class_name: str
    count: int
    nbytes: int
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of the device and the process in bytes; None if unknown.

    ``allocated_bytes`` and ``reserved_bytes`` are the caching allocator's, ``peak_bytes`` the most allocated since the
    last point, ``used_bytes`` what all processes use on the device, ``process_bytes`` this process's resident memory.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    used_bytes: int | None = None
    process_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TrackPoint:
    """A call of ``track``: where and when, what appeared and disappeared since the last call, and what is live now."""

    label: str
    file: str
    line: int
    function: str
    time: str
    appeared: tuple[TensorGroup, ...]
    gone: tuple[TensorGroup, ...]
    storages: int
    tensor_bytes: int
    memory: DeviceMemory


@dataclass(frozen=True, slots=True)
class WatchedModule:
    """A watched module: the number of its calls, and the growth of live tensors over them in bytes.

    ``own_bytes`` excludes its submodules. ``highest_bytes`` is the most that was live at the end of a call.
    """

    path: str
    class_name: str
    calls: int
    added_bytes: int
    own_bytes: int
    highest_bytes: int


def _total(groups: Iterable[TensorGroup]) -> int:
    return sum(group.nbytes for group in groups)


def _bytes(name: str, heading: str) -> Field:
    return Field(name, heading, "bytes", scaled=True)


MEMORY = {
    "allocated_bytes": ("Allocated", "Total Allocated Memory"), "reserved_bytes": ("Reserved", "Reserved Memory"),
    "peak_bytes": ("Peak since last", "Peak Since Last"), "used_bytes": ("Device used", "Device Used Memory"),
    "process_bytes": ("Process", "Process Memory"),
}  # fmt: skip
"""The figures of the device's memory: their headings in a table, and their labels in Pytorch-Memory-Utils' lines."""

POINT_COLUMNS: dict[Field, Callable[[TrackPoint], Value]] = {
    Field("where", "Where"): lambda point: f"{point.file}:{point.line} {point.function}",
    Field("time", "Time"): lambda point: point.time,
    Field("storages", "Storages", "count"): lambda point: point.storages,
    _bytes("tensor_bytes", "Tensors"): lambda point: point.tensor_bytes,
    _bytes("appeared_bytes", "Appeared"): lambda point: _total(point.appeared),
    _bytes("gone_bytes", "Gone"): lambda point: _total(point.gone),
    **{_bytes(name, heading): attrgetter(f"memory.{name}") for name, (heading, _) in MEMORY.items()},
}

MODULE_FIELDS = (
    Field("calls", "Calls", "count"), _bytes("added_bytes", "Added"), _bytes("own_bytes", "Added, own"),
    _bytes("highest_bytes", "Most live at a call's end"),
)  # fmt: skip


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
    sums = [_total(groups) for _, groups in changes]
    shown = [f"{sign}{size_text(nbytes)}" if nbytes else "" for (sign, _), nbytes in zip(changes, sums)]
    lines = [ROW.format(number, where, size_text(point.tensor_bytes), *shown).rstrip()]
    for sign, groups in changes if detail else ():
        for group in groups[:MOST_GROUPS]:
            count = f"{group.count:,} x " if group.count > 1 else ""
            of = ", ".join(group.owners[:1]) + (f" and {len(group.owners) - 1:,} more" if len(group.owners) > 1 else "")
            what = f"{count}{group.shape} {group.dtype}, {size_text(group.nbytes)}{f': {of}' if of else ''}"
            lines.append(one_line(f"     {sign} {what}"))
        if others := groups[MOST_GROUPS:]:
            lines.append(f"     {sign} {len(others):,} more, {size_text(_total(others))}")
    return "".join(f"{line}\n" for line in lines)


def point_text(point: TrackPoint, detail: bool, is_first: bool) -> str:
    """Return what appeared (+) and disappeared (-), aligned, then the call's line with the totals in binary units.

    The first point of a file has a title.
    """
    title = [f"GPU Memory Track | {point.time} | {_totals(point)}", ""] if is_first else []
    changes = [("+", group) for group in point.appeared] + [("-", group) for group in point.gone]
    shown = [(str(group.count), str(group.shape), size_text(group.nbytes)) for _, group in changes]
    widths = [max([least, *map(len, column)]) for least, *column in zip(WIDTHS, *shown)]
    lines = []
    for (sign, group), (count, size, nbytes) in zip(changes, shown):
        kind = f"<class '{group.class_name}'>"
        owners = [*group.owners[:MOST_OWNERS], *(["..."] if len(group.owners) > MOST_OWNERS else [])]
        head = f"{sign} | {count:>{widths[0]}} * Size:{size:<{widths[1]}}"
        cells = [head, f"Memory: {nbytes:>{widths[2]}}", f"{kind:<20}", f"torch.{group.dtype}", ", ".join(owners)]
        lines.append(one_line(" | ".join(cells if owners else cells[:-1])))
    where = one_line(f"{point.file} line {point.line}: {point.function}" + (f" ({point.label})" if point.label else ""))
    after = ["", f"At {where:<50} {_totals(point)}", ""]
    return "".join(f"{line}\n" for line in [*title, *(lines if detail else []), *after])


WIDTHS = (3, 20, 10)  # Minimum widths of counts, sizes and bytes.


def _totals(point: TrackPoint) -> str:
    figures = {label: getattr(point.memory, name) for name, (_, label) in MEMORY.items()}
    known = {"Total Tensor Used Memory": point.tensor_bytes, **figures}.items()
    return " ".join(f"{label}:{size_text(nbytes):<11}" for label, nbytes in known if nbytes is not None)


@dataclass(frozen=True, repr=False)
class TrackReport(Views, Figures):
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

    device: str
    points: tuple[TrackPoint, ...]
    modules: tuple[WatchedModule, ...] = ()

    def plot(self, *, ax: Axes | None = None, width: str | None = None) -> Axes:
        """Plot the bytes of tensors over the points, with the allocator's and the device's figures where known.

        Without ``ax`` a new figure is made, "column", "page" or "notebook" wide. Raises :class:`InputError` without
        points, :class:`MissingExtraError` without matplotlib.
        """
        return draw_tracking(self.device, self.points, placed(ax, width))

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        known, columns = {field.name: field for field in POINT_COLUMNS}, look.get("columns")
        if columns is None:  # Every known one but the time.
            shown = [f for f, read in POINT_COLUMNS.items() if any(read(point) is not None for point in self.points)]
            columns = [field.name for field in shown if field.name != "time"]
        columns = [columns] if isinstance(columns, str) else list(columns)
        for name in columns:
            if name not in known:
                raise choice_error("column", name, known)
        fields = tuple(known[name] for name in columns)
        rows = []
        for number, point in enumerate(self.points, 1):
            own = cells(fields, (POINT_COLUMNS[field](point) for field in fields))
            rows.append(TableRow(point.label or str(number), f"{point.file}:{point.line}", 0, own))
        points = Table(f"Tensors on {self.device}", "Point", fields, tuple(rows))
        if not self.modules:
            return (points,)
        rows = []
        for module in self.modules:
            own = cells(MODULE_FIELDS, (getattr(module, field.name) for field in MODULE_FIELDS))
            rows.append(TableRow(f"{module.path or '(root)'} ({module.class_name})", module.path, 0, own))
        return points, Table("Modules watched", "Module (type)", MODULE_FIELDS, tuple(rows))
