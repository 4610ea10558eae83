"""Settings of a step by GPU -> their table, independent of format."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.units import common_unit, mebibytes
from ..formats.table import Cell, Field, Table, TableRow
from ..memory.estimate import Estimate
from ..memory.gpus import find_gpu

SettingRow = tuple[str, Estimate, "list[tuple[int, str]]"]
"""A setting's name, its estimate, and for each GPU the largest batch and the words for it."""


def what_if_table(batch: int, gpus: Sequence[str], rows: Sequence[SettingRow], advice: Sequence[str]) -> Table:
    """Return the table with a row per setting: its peak, and for each GPU whether it fits and up to which batch."""
    info = rows[0][1].info
    answer, *notes = advice
    return Table(
        title=f"{info.step}: {info.model}, batch {batch:,}",
        labels="Setting",
        fields=(
            Field("peak_bytes", "Peak", "bytes", scaled=True),
            *(Field(gpu, f"{gpu} ({find_gpu(gpu).datasheet_gb} GB)", "count") for gpu in gpus),
        ),
        rows=tuple(_row(*row) for row in rows),
        notes=tuple(notes),
        answer=answer,
        unit=common_unit(max(estimate.peak_bytes for _, estimate, _ in rows)),
    )


def _row(name: str, estimate: Estimate, limits: Sequence[tuple[int, str]]) -> TableRow:
    peak = Cell(estimate.peak_bytes, mebibytes(estimate.peak_bytes))
    return TableRow(name, name, 0, (peak, *(Cell(largest, words) for largest, words in limits)))
