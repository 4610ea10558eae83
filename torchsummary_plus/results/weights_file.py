"""WeightsFile: the contents of a weight file, read from its header, with their table and other views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING

from ..data.stored_weights import WeightEntry
from ..data.units import mebibytes
from ..formats.table import Cell, Field, Table, TableRow, Total
from .views import Columns, Depth, Views

if TYPE_CHECKING:
    from ..formats.table import Table


FIELDS = (
    Field("shape", "Shape"),
    Field("dtype", "Dtype"),
    Field("num_params", "Param #", "elements", adds_up=True),
    Field("nbytes", "Bytes", "bytes", adds_up=True),
)


def weights_table(name: str, tensors: Sequence[WeightEntry], depth: int | None = None) -> Table:
    """Return the table with a row per tensor, or per group whose names share their first ``depth`` parts."""
    groups: dict[str, list[WeightEntry]] = {}
    for entry in tensors:
        path = entry.name if depth is None else ".".join(entry.name.split(".")[: max(1, depth)])
        groups.setdefault(path, []).append(entry)
    rows = tuple(TableRow(path, path, 0, _cells(entries)) for path, entries in groups.items())
    params, nbytes = _counts(tensors)
    totals = (
        Total(Field("total_params", "Total params", "elements"), Cell(params, f"{params:,}")),
        Total(Field("total_bytes", "Stored", "bytes", scaled=True), Cell(nbytes, mebibytes(nbytes))),
    )
    return Table(name, "Tensor", FIELDS, rows, totals)


def _cells(entries: Sequence[WeightEntry]) -> tuple[Cell, ...]:
    shape = str(list(entries[0].shape)) if len(entries) == 1 else f"{len(entries):,} tensors"
    dtypes = ", ".join(name for name, _ in Counter(entry.dtype for entry in entries).most_common())
    return Cell(shape, shape), Cell(dtypes, dtypes), *(Cell(count, f"{count:,}") for count in _counts(entries))


def _counts(entries: Sequence[WeightEntry]) -> tuple[int, int]:
    """Return the parameters and the stored bytes."""
    return sum(entry.num_params for entry in entries), sum(entry.nbytes for entry in entries)


@dataclass(frozen=True, repr=False)
class WeightsFile(Views):
    """The result of :func:`weights`: the tensors of a file as immutable data.

    With a ``depth``, tensors whose names begin with the same parts are summed.

    >>> WeightsFile("tiny", (WeightEntry("scale", (3,), "F32", 12, "tiny.safetensors"),)).total_params
    3
    """

    name: str
    tensors: tuple[WeightEntry, ...]

    @property
    def total_params(self) -> int:
        """Parameters of the model: packed weights count unpacked, and scales, shapes and indices do not count."""
        return sum(entry.num_params for entry in self.tensors)

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all tensors."""
        return sum(entry.nbytes for entry in self.tensors)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        return (weights_table(self.name, self.tensors, None if isinstance(depth, EllipsisType) else depth),)
