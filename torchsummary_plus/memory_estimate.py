"""MemoryEstimate: the memory of a step, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import EllipsisType

from .memory.estimate import Estimate
from .render.memory_tables import memory_table
from .render.memory_text import estimate_text
from .render.table import Table
from .render.text import table_text
from .views import Columns, Depth, Views, check_units


@dataclass(frozen=True, repr=False)
class MemoryEstimate(Estimate, Views):
    """The result of :func:`estimate_memory`: frozen data in bytes, shown by ``str()`` and by the views.

    Its table has the bytes at the peak by kind (columns ``bytes`` and ``percent``), or by module where ``columns`` are
    of that table: at the peak ``peak_own_bytes``, ``peak_inclusive_bytes`` and ``peak_parameters_bytes`` or any other
    kind; over the whole step ``output_bytes``, ``saved_bytes``, ``param_bytes``, ``grad_bytes``, ``optimizer_bytes``.
    With a ``depth`` the modules below it are added to the one above them.
    """

    def render(self, width: int = 64, units: str | None = None) -> str:
        """The estimate as text, ruled with so many dashes. Without ``units`` its MB are 1024 x 1024 bytes."""
        return estimate_text(self, width, units)

    def to_text(
        self, *, columns: Columns = ..., depth: Depth = ..., style: str | None = None, units: str | None = None
    ) -> str:
        """What :meth:`render` gives, or a table of some ``columns``, whose bytes are in MiB unless told otherwise."""
        if not isinstance(columns, EllipsisType):
            return table_text(self.tables(columns=columns, depth=depth, style=style, units=units or "MiB")[0])
        if units is not None:
            check_units(units)
        return self.render(units=units)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        asked = None if isinstance(columns, EllipsisType) else columns
        deepest = None if isinstance(depth, EllipsisType) else depth
        return (memory_table(self, asked, deepest, style or "torchsummary"),)

    def __str__(self) -> str:
        return self.render()

    __repr__ = __str__


def as_memory_estimate(estimate: Estimate) -> MemoryEstimate:
    """An estimate with a way to show it."""
    return MemoryEstimate(**{one.name: getattr(estimate, one.name) for one in fields(Estimate)})
