"""TrackReport: what a tracker saw, and every way to look at it."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING

from .figures import Figures
from .render.tracking_tables import tracking_tables
from .tracking_records import Tracking
from .views import Columns, Depth, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from .render.figure import Place
    from .render.table import Table
    from .views import ShownLook


@dataclass(frozen=True, repr=False)
class TrackReport(Tracking, Views, Figures):
    """The result of :meth:`MemTracker.report`: frozen data, shown by ``str()`` and by the views.

    Its main table has a row for each point, with the columns ``where``, ``time``, ``storages``, ``tensor_bytes``,
    ``appeared_bytes``, ``gone_bytes``, ``allocated_bytes``, ``reserved_bytes``, ``peak_bytes``, ``used_bytes`` and
    ``process_bytes``; the second one the modules that were watched.
    """

    def to_text(self, **look: Unpack[ShownLook]) -> str:
        """The tables as plain text; bytes are in MiB unless told otherwise."""
        from .render.text import table_text

        return "\n\n".join(map(table_text, self.tables(**look)))

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """The bytes of tensors from point to point, and what the allocator and the device say where they do.

        Axes that are not given are those of a new pyplot figure, as wide as a column of a paper. Raises
        :class:`InputError` without points, :class:`MissingExtraError` without matplotlib.
        """
        from .render.figure import placed

        return self._draw(placed(ax))

    def _draw(self, place: Place) -> Axes:
        from .render.tracking_plot import draw_tracking

        return draw_tracking(self, place)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        return tracking_tables(self, None if isinstance(columns, EllipsisType) else columns)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__
