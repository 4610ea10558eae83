"""StepComparison: what steps take side by side, predicted or measured, and every way to look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .figures import Figures
from .memory_estimate import MemoryEstimate
from .render.step_tables import steps_table
from .views import Columns, Depth, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from .render.figure import Place
    from .render.table import Table
    from .views import ShownLook


@dataclass(frozen=True, repr=False)
class StepComparison(Views, Figures):
    """The result of :func:`compare` for estimates and measurements: frozen data, shown by ``str()`` and by the views.

    Its table has a row for each figure in bytes (the peak by kind and by phase; from what tensors take to what the
    device shows), a column for each step, and what the others differ by from the first.
    """

    names: tuple[str, ...]
    estimates: tuple[MemoryEstimate, ...]

    def to_text(self, **look: Unpack[ShownLook]) -> str:
        """The table as plain text; bytes are in MiB unless told otherwise."""
        from .render.text import table_text

        return table_text(self.tables(**look)[0])

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Bars of the peaks by kind. Axes that are not given are those of a new pyplot figure, as wide as a column.

        Raises :class:`MissingExtraError` without matplotlib.
        """
        from .render.figure import placed

        return self._draw(placed(ax))

    def _draw(self, place: Place) -> Axes:
        from .render.bars import draw_steps

        return draw_steps(self.names, self.estimates, place)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        return (steps_table(self.names, self.estimates),)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__
