"""StepComparison: memory estimates and measurements side by side, with their views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..formats.printing import printable
from ..render.step_tables import steps_table
from .figures import Figures
from .memory_estimate import MemoryEstimate
from .views import Columns, Depth, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..formats.table import Table
    from ..render.figure import Place


@dataclass(frozen=True, repr=False)
class StepComparison(Views, Figures):
    """The result of :func:`compare` for steps: immutable data, printed by ``str()`` and the other views.

    The table has a row per figure in bytes (the peak by kind and by phase; allocated, reserved and device memory), one
    for the time where it is known, a column per step, and the difference of each further step from the first.

    >>> from torch import nn
    >>> from torchsummary_plus import compare, estimate_memory
    >>> layer, request = nn.Linear(8, 8), {"input_size": (8,), "device": "cpu"}
    >>> steps = {name: estimate_memory(layer, **request, optimizer=name) for name in ("sgd", "adam")}
    >>> compare(steps).to_csv().splitlines()[0]
    'figure,path,level,sgd,adam,adam-sgd'
    """

    names: tuple[str, ...]
    estimates: tuple[MemoryEstimate, ...]

    def contradiction(self) -> str:
        """Return what is wrong in a comparison that was read; "" if nothing is."""
        return "" if len(self.names) == len(self.estimates) > 0 else "each step has one name, and there is at least one"

    def plot(self, *, ax: Axes | None = None, width: str | None = None) -> Axes:
        """Plot the peaks as bars, by kind. Without ``ax`` a new figure is made, "column", "page" or "notebook" wide.

        Raises :class:`MissingExtraError` without matplotlib.
        """
        from ..render.figure import placed

        return self._draw(placed(ax, width))

    def _draw(self, place: Place) -> Axes:
        from ..render.bars import draw_steps

        return draw_steps(self.names, self.estimates, place)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        times = [estimate.known_time() for estimate in self.estimates]
        seconds = [None if time is None else time.seconds for time in times]
        return (steps_table(self.names, self.estimates, seconds),)

    def __str__(self) -> str:
        return printable(self.to_text())

    __repr__ = __str__
