"""WeightsFile: the contents of a weight file, read from its header, with its views."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING

from ..data.weight_entries import WeightEntry
from ..formats.printing import printable
from ..render.weights_table import weights_table
from .views import Columns, Depth, Views

if TYPE_CHECKING:
    from ..formats.table import Table


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

    def __str__(self) -> str:
        return printable(self.to_text())

    __repr__ = __str__
