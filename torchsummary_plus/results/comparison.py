"""Comparison and StepComparison: models, or the memory of steps, side by side, with their views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from ..data.errors import choice_error
from ..render import comparison_tables as side_by_side
from ..render.bars import draw_comparison, draw_steps
from ..render.figure import placed
from ..render.memory_tables import steps_table
from ..table.columns import check_layout
from .memory_estimate import MemoryEstimate
from .model_summary import Presentation
from .views import OF_FIGURES, Chosen, Depth, Figures, ShownLook, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from ..formats.table import Table
    from ..render.html_report import Section


MANY = 3  # Maximum number of models whose layers fit on a page side by side, with shapes and parameters.

MANY_COLUMNS = ("num_params",)


@dataclass(frozen=True, repr=False)
class Comparison(Views, Figures, side_by_side.Compared):
    """The result of :func:`compare`: immutable data, printed by ``str()`` and the other views.

    The main table has a row per figure, with the best value marked; the second (``table=1`` in formats with a single
    table) has the layers, aligned by type and shapes.

    >>> from torch import nn
    >>> from torchsummary_plus import compare
    >>> result = compare({"narrow": nn.Linear(3, 2), "wide": nn.Linear(3, 4)}, input_size=(3,))
    >>> "*8" in result.to_text()
    True
    """

    view: Presentation = field(default_factory=Presentation)
    figures: tuple[str, ...] | None = None
    """The figures of the main table; None for all."""
    orient: str = "figures"
    """What the rows of the main table are: "figures" or "models"."""
    layers: bool | None = None
    """Whether the layers are shown; None shows them if at least half of them match, or if columns were chosen."""

    _own_options: ClassVar[tuple[str, ...]] = OF_FIGURES
    _look_of_data: ClassVar[Chosen] = {"layers": True}
    _html_style: ClassVar[str | None] = None
    """None: a tree would hide rows that only one model has."""

    def aligned(self, style: str | None = None, depth: Depth = ...) -> tuple[tuple[int | None, ...], ...]:
        """Return, for each row of the layer table, the index of the row in each entry's report (None: absent)."""
        shown, _ = self._options({"style": style, "depth": depth})
        rows = self._aligned(self.view.with_look(shown))
        return tuple(tuple(None if item is None else item[0].row.index for item in row) for row in rows)

    def _aligned(self, view: Presentation) -> list[side_by_side.AlignedRow]:
        check_layout(view.style, view.depth)
        return side_by_side.aligned_lines(self, view.style, view.depth)

    def plot(
        self, figures: Sequence[str] | str | None = None, *, ax: Axes | None = None, width: str | None = None
    ) -> Axes:
        """Plot the models as bars, one panel per figure, with the best value in bold.

        ``figures`` are row names of the main table; None means parameters, multiply-adds and memory (a step's peak if
        ``compare`` was asked for one, else the total size). Without ``ax`` a new figure is made, "column", "page" or
        "notebook" wide. Raises :class:`InputError`, or :class:`MissingExtraError` without matplotlib.
        """
        return draw_comparison(self, figures, placed(ax, width))

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        chosen, orient = look.get("figures", self.figures), look.get("orient", self.orient)
        if orient not in side_by_side.ORIENTS:
            raise choice_error("orient", orient, side_by_side.ORIENTS)
        figures = side_by_side.figures_table(self, (chosen,) if isinstance(chosen, str) else chosen)
        if orient == "models":
            figures = side_by_side.models_table(figures, len(self.entries))
        view, layers = self.view.with_look(look), look.get("layers", self.layers)
        names = view.col_names
        side_by_side.shared_names(self, names)  # Raises for an unknown column, also where no layers are shown.
        if layers is False:
            return (figures,)
        aligned = self._aligned(view)
        if layers or names is not None or self.changes_only or side_by_side.layers_match(aligned):
            return figures, side_by_side.layers_table(self, aligned, names, view.style == "tree")
        return (replace(figures, notes=(*figures.notes, side_by_side.FEW_MATCH)),)

    def to_html(self, **look: Unpack[ShownLook]) -> str:
        """Return the tables as an HTML fragment; by default only the parameter columns of many models."""
        return super().to_html(**self._fitting(look))

    def _fitting(self, look: ShownLook) -> ShownLook:
        """Return a look whose columns fit on a page: only parameters for many models, unless others are chosen."""
        if len(self.entries) > MANY and self.view.col_names is None:
            look.setdefault("columns", MANY_COLUMNS)
        return look

    def _sections(self) -> tuple[Section, ...]:
        from ..render.html_report import tables_section

        tables = self.tables(**self._fitting({"units": "auto"}))
        return tuple(tables_section(title, (table,)) for title, table in zip(("Comparison", "Side by side"), tables))


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
        return draw_steps(self.names, self.estimates, placed(ax, width))

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        times = [estimate.known_time() for estimate in self.estimates]
        seconds = [None if time is None else time.seconds for time in times]
        return (steps_table(self.names, self.estimates, seconds),)
