"""WeightsFile: the contents of a weight file, read from its header, with their table and other views."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..data.stored_weights import WeightEntry
from ..formats.table import Field, Table, TableRow, Total, cells
from .views import Chosen, Views

FIELDS = (
    Field("shape", "Shape"), Field("dtype", "Dtype"), Field("num_params", "Param #", "elements", adds_up=True),
    Field("nbytes", "Bytes", "bytes", adds_up=True),
)  # fmt: skip
TOTALS = (Field("total_params", "Total params", "elements"), Field("total_bytes", "Stored", "bytes", scaled=True))


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

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        groups: dict[str, list[WeightEntry]] = {}
        depth = look.get("depth")
        deepest = None if depth is None else max(1, depth)
        for entry in self.tensors:
            path = ".".join(entry.name.split(".")[:deepest])
            groups.setdefault(path, []).append(entry)
        rows = []
        for path, entries in groups.items():
            shape = str(list(entries[0].shape)) if len(entries) == 1 else f"{len(entries):,} tensors"
            dtypes = ", ".join(name for name, _ in Counter(entry.dtype for entry in entries).most_common())
            sums = sum(entry.num_params for entry in entries), sum(entry.nbytes for entry in entries)
            rows.append(TableRow(path, path, 0, cells(FIELDS, (shape, dtypes, *sums))))
        totals = map(Total, TOTALS, cells(TOTALS, (self.total_params, self.total_bytes)))
        return (Table(self.name, "Tensor", FIELDS, tuple(rows), tuple(totals)),)
