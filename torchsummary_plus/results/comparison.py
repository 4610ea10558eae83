"""Comparison and StepComparison: models, or the memory of steps, side by side, with their views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from ..data.errors import choice_error
from ..render import comparison_tables as side_by_side
from ..render.bars import draw_comparison, draw_steps
from ..render.figure import placed
from ..render.memory_tables import steps_table
from ..table.columns import check_layout
from .memory_estimate import MemoryEstimate
from .model_summary import Presentation
from .views import Columns, Depth, FigureChoice, Figures, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from ..formats.table import Table
    from ..render.html_report import Section
    from .views import ChosenLook, ShownLook


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

    _html_style: ClassVar[str | None] = None
    """None: a tree would hide rows that only one model has."""

    def aligned(self, style: str | None = None, depth: Depth = ...) -> tuple[tuple[int | None, ...], ...]:
        """Return, for each row of the layer table, the index of the row in each entry's report (None: absent)."""
        look, deepest, _ = self.view.with_look(..., depth, style)
        rows = self._aligned(look, deepest)
        return tuple(tuple(None if item is None else item[0].row.index for item in row) for row in rows)

    @cached_property
    def _alignments(self) -> dict[tuple[str, int | None], list[side_by_side.AlignedRow]]:
        return {}

    def _aligned(self, style: str, depth: int | None) -> list[side_by_side.AlignedRow]:
        """Return the aligned lines, computed once for each style and depth. Raises :class:`InputError`."""
        check_layout(style, depth)
        if (style, depth) not in self._alignments:
            self._alignments[style, depth] = side_by_side.aligned_lines(self, style, depth)
        return self._alignments[style, depth]

    def plot(
        self, figures: Sequence[str] | str | None = None, *, ax: Axes | None = None, width: str | None = None
    ) -> Axes:
        """Plot the models as bars, one panel per figure, with the best value in bold.

        ``figures`` are row names of the main table; None means parameters, multiply-adds and memory (a step's peak if
        ``compare`` was asked for one, else the total size). Without ``ax`` a new figure is made, "column", "page" or
        "notebook" wide. Raises :class:`InputError`, or :class:`MissingExtraError` without matplotlib.
        """
        return draw_comparison(self, figures, placed(ax, width))

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        figures = side_by_side.figures_table(self, self.figures)
        if self.orient == "models":
            figures = side_by_side.models_table(figures, len(self.entries))
        look, deepest, names = self.view.with_look(columns, depth, style)
        side_by_side.shared_names(self, names)  # Raises for an unknown column, also where no layers are shown.
        if self.layers is False:
            return (figures,)
        aligned = self._aligned(look, deepest)
        if self.layers or names is not None or self.changes_only or side_by_side.layers_match(aligned):
            return figures, side_by_side.layers_table(self, aligned, names, look == "tree")
        return (replace(figures, notes=(*figures.notes, side_by_side.FEW_MATCH)),)

    def _plain(self, table: int, *look: Any, **rows: Any) -> Table:
        return super()._plain(table, *look, **{"layers": True, **rows})

    def _with_rows(self, rows: ChosenLook, style: str | None) -> Views:
        """Return the comparison with the chosen figures, orientation and layers."""
        chosen: dict[str, Any] = {name: value for name, value in rows.items() if name in FigureChoice.__annotations__}
        if not chosen:
            return super()._with_rows(rows, style)
        if isinstance(chosen.get("figures"), str):
            chosen["figures"] = (chosen["figures"],)
        if chosen.get("orient", "figures") not in side_by_side.ORIENTS:
            raise choice_error("orient", chosen["orient"], side_by_side.ORIENTS)
        rest: Any = {name: value for name, value in rows.items() if name not in chosen}
        return replace(self, **chosen)._with_rows(rest, style)

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

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        times = [estimate.known_time() for estimate in self.estimates]
        seconds = [None if time is None else time.seconds for time in times]
        return (steps_table(self.names, self.estimates, seconds),)
