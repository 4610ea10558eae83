"""WeightsFile: the contents of a weight file, read from its header, with its views."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING

from ..data.units import mebibytes
from ..data.weight_files import WeightEntry
from ..render.printing import printable
from ..render.table import Cell, Field, Table, TableRow, Total
from .views import Columns, Depth, Views

if TYPE_CHECKING:
    pass

FIELDS = (
    Field("shape", "Shape"),
    Field("dtype", "Dtype"),
    Field("num_params", "Param #", "elements", adds_up=True),
    Field("nbytes", "Bytes", "bytes", adds_up=True),
)


@dataclass(frozen=True, repr=False)
class WeightsFile(Views):
    """The result of :func:`weights`: the tensors of a file as immutable data.

    With a ``depth``, tensors whose names begin with the same parts are summed.
    """

    name: str
    tensors: tuple[WeightEntry, ...]

    @property
    def total_params(self) -> int:
        """Elements of all tensors, including those stored in blocks or packed."""
        return sum(entry.numel for entry in self.tensors)

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all tensors."""
        return sum(entry.nbytes for entry in self.tensors)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        level = None if isinstance(depth, EllipsisType) else depth
        groups: dict[str, list[WeightEntry]] = {}
        for entry in self.tensors:
            path = entry.name if level is None else ".".join(entry.name.split(".")[: max(1, level)])
            groups.setdefault(path, []).append(entry)
        rows = tuple(TableRow(path, path, 0, _cells(entries)) for path, entries in groups.items())
        params, nbytes = self.total_params, self.total_bytes
        totals = (
            Total(Field("total_params", "Total params", "elements"), Cell(params, f"{params:,}")),
            Total(Field("total_bytes", "Stored", "bytes", scaled=True), Cell(nbytes, mebibytes(nbytes))),
        )
        return (Table(self.name, "Tensor", FIELDS, rows, totals),)

    def __str__(self) -> str:
        return printable(self.to_text())

    __repr__ = __str__


def _cells(entries: list[WeightEntry]) -> tuple[Cell, ...]:
    shape = str(list(entries[0].shape)) if len(entries) == 1 else f"{len(entries):,} tensors"
    dtypes = ", ".join(name for name, _ in Counter(entry.dtype for entry in entries).most_common())
    counts = sum(entry.numel for entry in entries), sum(entry.nbytes for entry in entries)
    return Cell(shape, shape), Cell(dtypes, dtypes), *(Cell(count, f"{count:,}") for count in counts)
