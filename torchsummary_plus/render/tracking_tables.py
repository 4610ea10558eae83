"""A tracker's records -> their tables, independent of format: a row per point, and one per watched module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..data.errors import choice_error
from ..data.tracking_records import TensorGroup, Tracking, TrackPoint, WatchedModule
from ..data.units import mebibytes
from ..formats.table import Cell, Field, Table, TableRow, Value


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
