"""TrackReport: a tracker's points and watched modules, with their views."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING

from ..data.tracking_records import Tracking
from ..formats.printing import printable
from ..render.tracking import tracking_tables
from .figures import Figures
from .views import Columns, Depth, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..formats.table import Table
    from ..render.figure import Place


@dataclass(frozen=True, repr=False)
class TrackReport(Tracking, Views, Figures):
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
        from ..render.figure import placed

        return self._draw(placed(ax, width))

    def _draw(self, place: Place) -> Axes:
        from ..render.tracking_plot import draw_tracking

        return draw_tracking(self, place)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        return tracking_tables(self, None if isinstance(columns, EllipsisType) else columns)

    def __str__(self) -> str:
        return printable(self.to_text())

    __repr__ = __str__
