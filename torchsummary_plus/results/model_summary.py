"""ModelSummary: the result of a summary, with its views."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from types import EllipsisType
from typing import TYPE_CHECKING, ClassVar

from ..render.columns import MEMORY_COLUMNS
from ..render.tables import summary_table
from ..render.text import summary_text
from ..report.report import Report
from .echo import is_echo, takes_html
from .figures import Figures
from .views import Columns, Depth, Views, check_units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..render.figure import Place
    from ..render.html_report import Section
    from ..render.table import Table
    from .memory_estimate import MemoryEstimate  # Imported here: a plain table starts faster without it.

REPORT_COLUMNS = ("output_size", "num_params", "params_percent", "mult_adds")
"""A report's columns for each layer, unless the summary has its own."""


@dataclass(frozen=True)
class Presentation:
    """A summary's default style, depth and columns."""

    style: str = "torchsummary"
    depth: int | None = None
    col_names: tuple[str, ...] | None = None

    def with_look(
        self, columns: Columns, depth: Depth, style: str | None
    ) -> tuple[str, int | None, Iterable[str] | None]:
        """Replace style, depth and columns by those given."""
        return (
            self.style if style is None else style,
            self.depth if isinstance(depth, EllipsisType) else depth,
            self.col_names if isinstance(columns, EllipsisType) else columns,
        )


@dataclass(frozen=True, repr=False)
class ModelSummary(Report, Views, Figures):
    """The result of :func:`summary`: immutable data, printed by ``str()``, :meth:`render` and the other views.

    It holds no tensors or modules: it outlives the model, can be pickled, and compares by value.
    """

    _derived: ClassVar[tuple[str, ...]] = ("non_trainable_params", "total_bytes")

    view: Presentation = field(default_factory=Presentation)
    memory: MemoryEstimate | None = None
    """The memory estimate, if ``summary`` was asked for one."""

    def render(
        self,
        *,
        style: str | None = None,
        depth: Depth = ...,
        col_names: Columns = ...,
        units: str | None = None,
    ) -> str:
        """Return the table with another style, depth or columns, without running the model again.

        Arguments left out keep the summary's own; ``depth=None`` shows every level, ``col_names=None`` the default
        columns. Without ``units``, an MB is 1024 x 1024 bytes, as in torchsummary; "MiB" labels that exactly, "MB" is
        1,000,000 bytes, and "auto" picks a unit per figure. Raises :class:`InputError` for an unknown style, depth,
        column or unit.
        """
        if units is not None:
            check_units(units)
        style, depth, names = self.view.with_look(col_names, depth, style)
        text = summary_text(summary_table(self, style, depth, names), style, units)
        if self.memory is None:
            return text
        return f"{text}\n{self.memory.render(len(text.splitlines()[-1]), units)}"

    def to_text(
        self, *, columns: Columns = ..., depth: Depth = ..., style: str | None = None, units: str | None = None
    ) -> str:
        """Return :meth:`render`'s text, with the argument names that all views share."""
        return self.render(style=style, depth=depth, col_names=columns, units=units)

    def _tables(self, columns: Columns, depth: Depth, style: str | None) -> tuple[Table, ...]:
        """Return the table of the layers and, with an estimate, that of the memory at the peak."""
        table = summary_table(self, *self.view.with_look(columns, depth, style))
        return (table,) if self.memory is None else (table, *self.memory._tables(..., ..., None))

    @classmethod
    def _named_types(cls) -> dict[str, type]:
        from .memory_estimate import MemoryEstimate

        return {"MemoryEstimate": MemoryEstimate}

    def plot(self, by: str = "num_params", *, top: int = 15, depth: Depth = ..., ax: Axes | None = None) -> Axes:
        """Plot the ``top`` layers as bars, coloured by class.

        ``by`` is ``num_params``, ``mult_adds`` or ``output_bytes``; after ``summary(memory=...)`` also ``saved_bytes``,
        ``grad_bytes`` or ``optimizer_bytes``. Without ``ax`` a new figure, one column wide, is made. Raises
        :class:`InputError`, or :class:`MissingExtraError` without matplotlib.
        """
        from ..render.figure import placed

        return self._draw(placed(ax), by=by, top=top, depth=depth)

    def _draw(self, place: Place, by: str = "num_params", top: int = 15, depth: Depth = ...) -> Axes:
        from ..render.bars import draw_layers

        return draw_layers(self, by, top, self.view.with_look(None, depth, None)[1], place)

    def to_mermaid(self, kind: str = "class", depth: int | None = None) -> str:
        """Return the model as a Mermaid diagram, which GitHub draws from a ``mermaid`` block.

        ``kind`` is "class" (a box per module class; one class with different contents has several) or "flow" (the calls
        in order; repeated blocks are drawn once, with their number). ``depth`` limits the nesting; None draws as deep
        as Mermaid can. Raises :class:`InputError`, also for the flow of a static summary.

        >>> from torch import nn
        >>> from torchsummary_plus import summary
        >>> print(summary(nn.Sequential(nn.Linear(8, 4)), (8,), verbose=0).to_mermaid("flow"), end="")
        flowchart TB
            given(["input [-1, 8]"])
            subgraph s0["Sequential"]
                direction TB
                n1["0: Linear<br/>[-1, 4]<br/>36 params"]
            end
            given --> n1
        """
        from ..render.diagram import mermaid_text

        return mermaid_text(self, kind, depth)

    def _headline(self) -> tuple[str, str]:
        batch = "any batch" if self.run.batch_size is None else f"batch of {self.run.batch_size:,}"
        given = "no input" if self.run.kind == "none" else f"Forward, {batch}"
        return self.rows[0].class_name, given if self.memory is None else self.memory.tables()[0].title

    def _sections(self) -> tuple[Section, ...]:
        from ..render.html_report import tables_section

        columns = REPORT_COLUMNS + (MEMORY_COLUMNS if self.memory else ())
        shown = ... if self.view.col_names else columns
        layers = tables_section("Layers", self.tables(columns=shown, depth=None, style="tree", units="auto")[:1])
        return (layers, *(self.memory._sections() if self.memory else ()))

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        if is_echo(self):
            return f"<ModelSummary of {self.rows[0].class_name}: {self.total_params:,} parameters>"
        return self.render()

    def _ipython_display_(self) -> None:
        """Show nothing at the end of a notebook's statement that has already shown the summary, else the usual view."""
        if not (takes_html() and is_echo(self)):
            raise NotImplementedError


def as_summary(report: Report, view: Presentation) -> ModelSummary:
    """Return a report as a summary with a default view."""
    return ModelSummary(**{one.name: getattr(report, one.name) for one in fields(Report)}, view=view)
