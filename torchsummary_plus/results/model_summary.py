"""ModelSummary, the result of a summary, and ModelGraph, the graph of its calls, with their views."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import TYPE_CHECKING, ClassVar, TextIO

from ..data.errors import InputError, choice_error
from ..data.records import GraphEdge, GraphNode, Run
from ..data.units import OLD_MB, one_line
from ..formats.table import CellStyle, Table, written
from ..formats.text import columns_of, fitted, rich_text, summary_text
from ..render import graph as graphs
from ..render.columns import added_names
from ..render.html import fragment
from ..render.plots import draw_layers, placed
from ..table.columns import FRAME_COLUMNS, GUESSES, check_layout, default_names, report_totals, summary_table
from ..table.lines import ALL_ROWS, REPEATS, RowView, row_view
from ..table.rows import Report, is_tree
from .memory_estimate import MemoryEstimate
from .views import OF_ROWS, Chosen, Columns, Depth, Figures, Section, ShownLook, Views, is_echo, takes_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

REPORT_COLUMNS = ("output_size", "num_params", "params_percent", "mult_adds")
"""A report's columns for each layer, unless the summary has its own."""

ROW_FIELDS = dict(zip(OF_ROWS, ("rows", "repeats", "settings", "width")))
"""The options of a view that choose rows, and their fields of a :class:`RowView`."""


@dataclass(frozen=True)
class Presentation:
    """A summary's default style, depth, columns and rows. Raises :class:`InputError` for an unknown style or depth."""

    style: str = "torchsummary"
    depth: int | None = None
    col_names: tuple[str, ...] | None = None
    lines: RowView = ALL_ROWS

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", check_layout(self.style, self.depth))

    def with_look(self, look: Chosen) -> Presentation:
        """Return it with the options that are given. Raises :class:`InputError`."""
        given, lines = look.get("style"), self.lines
        style = self.style if given is None else given
        if rows := {name: value for name, value in look.items() if name in ROW_FIELDS}:
            chosen = row_view(**rows)
            lines = replace(lines, **{ROW_FIELDS[name]: getattr(chosen, ROW_FIELDS[name]) for name in rows})
            nested = chosen.style_of(style)
            style = nested if given is None else style
        return Presentation(style, look.get("depth", self.depth), look.get("columns", self.col_names), lines)

    def folded(self) -> Presentation:
        """Return the view of text, in which nested repeats are folded unless they are to be shown."""
        return self if self.lines.repeats else replace(self, lines=replace(self.lines, repeats="fold"))


@dataclass(frozen=True, repr=False)
class ModelGraph(Views):
    """The result of :func:`graph`: a model's nodes and edges as immutable data.

    :meth:`to_mermaid`, :meth:`to_dot` and :meth:`to_svg` draw it, and a notebook shows the drawing. An edge means that
    its target reads a tensor that its source produced. The main table has a row per node, with the columns ``kind``,
    ``connected_to``, ``output_size``, ``num_params``, ``mult_adds``, ``output_bytes`` and ``repeats``; the second has a
    row per edge.

    >>> from torch import nn
    >>> from torchsummary_plus import graph
    >>> drawing = graph(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (3,))
    >>> [node.kind for node in drawing.nodes]
    ['input', 'group', 'module', 'module', 'output']
    """

    name: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    run: Run

    def _check(self) -> None:
        super()._check()
        self.to_dot()

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart, which GitHub draws from a ``mermaid`` block (up to 500 edges)."""
        return "\n".join([*graphs.graph_lines(self.nodes, self.edges), ""])

    def to_dot(self, *, width: str | None = None, direction: str = "TB") -> str:
        """Return Graphviz DOT text, with the shapes on the edges.

        ``width`` makes edges wider by the "bytes" they carry or by the "mult_adds" of the node that reads them;
        ``direction`` is "TB", "LR", "BT" or "RL". Raises :class:`InputError` for another.

        >>> from torch import nn
        >>> from torchsummary_plus import graph
        >>> print(graph(nn.Sequential(nn.Linear(8, 4)), (8,)).to_dot().splitlines()[-2].strip())
        n1 -> t1 [label="[-1, 4]", edgetooltip="[-1, 4], 16 B"]
        """
        return graphs.dot_text(self.name, self.nodes, self.edges, width, direction)

    def to_svg(self, *, width: str | None = None, direction: str = "TB") -> str:
        """Return a drawing as SVG, which follows the reader's light or dark scheme.

        Graphviz draws :meth:`to_dot` if the extra "graph" and its program are installed, else the calls are one below
        the other in their order. Only Graphviz draws in other directions: they raise :class:`MissingExtraError` without
        the extra, :class:`UnsupportedError` without the program.
        """
        dot = self.to_dot(width=width, direction=direction)
        is_drawn = direction != "TB" or graphs.has_graphviz()
        return graphs.graphviz_svg(dot) if is_drawn else graphs.column_svg(self.nodes, self.edges, width)

    def to_html(self, **look: Unpack[ShownLook]) -> str:
        """Return the drawing, and the tables below it, as an HTML fragment for any page; see :meth:`to_svg`."""
        return fragment(self.tables(**look), self.to_svg())

    def _sections(self) -> tuple[Section, ...]:
        return ((self.name, self.tables(), self.to_svg()),)

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        return graphs.graph_tables(self.name, self.nodes, self.edges, look.get("columns"))

    def __repr__(self) -> str:
        return f"<ModelGraph of {one_line(self.name)}: {len(self.nodes):,} nodes, {len(self.edges):,} edges>"


@dataclass(frozen=True, repr=False)
class ModelSummary(Views, Figures, Report):
    """The result of :func:`summary`: immutable data, printed by ``str()``, :meth:`render` and the other views.

    It holds no tensors or modules: it outlives the model, can be pickled, and compares by value.

    >>> from torch import nn
    >>> from torchsummary_plus import summary
    >>> table = summary(nn.Linear(3, 2), (3,), verbose=0)
    >>> table.total_params, len(table.rows)
    (8, 1)
    """

    _derived: ClassVar[tuple[str, ...]] = ("non_trainable_params", "active_params", "total_bytes")
    _own_options: ClassVar[tuple[str, ...]] = OF_ROWS

    view: Presentation = field(default_factory=Presentation)
    memory: MemoryEstimate | None = None
    """The memory estimate, if ``summary`` was asked for one."""

    @property
    def total_train_mult_adds(self) -> int | None:
        """Multiply-adds of a whole training step; None unless the summary was made with ``memory="train"``."""
        return None if self.memory is None else self.memory.total_train_mult_adds

    def render(self, *, col_names: Columns = ..., **look: Unpack[ShownLook]) -> str:
        """Return the table with another style, depth, columns or rows, without running the model again.

        Arguments left out keep the summary's own; ``depth=None`` shows every level, ``col_names=None`` the default
        columns, ``rows=None`` all rows. Without ``units``, an MB is 1024 x 1024 bytes, as in torchsummary; "MiB" labels
        that exactly, as a summary with ``memory=`` always does, "MB" is 1,000,000 bytes, and "auto" picks a unit per
        figure; other options are those of all views. Raises :class:`InputError` for an unknown style, depth, column,
        row or unit.
        """
        look.setdefault("columns", col_names)
        return self.to_text(**look)

    def to_text(self, **look: Unpack[ShownLook]) -> str:
        """Return :meth:`render`'s text, with the argument names that all views share."""
        shown, cells = self._options(look)
        view = self.view.with_look(shown).folded()
        (table,) = written([self._layers(view, look.get("units") is None)], cells)
        text = summary_text(table, view.style, "ascii_only" in view.lines.settings)
        if self.memory is None:
            return text
        return f"{text}\n{self.memory.render(units=cells.units.get('bytes', cells.sizes))}"

    def _layers(self, view: Presentation, in_old_mb: bool = False) -> Table:
        """Return the table of the layers; beside the memory of a step, torchsummary's guesses at it are left out."""
        table = summary_table(self, view.style, view.depth, view.col_names, view.lines)
        if self.memory is None:
            return replace(table, unit=OLD_MB) if in_old_mb else table
        return replace(table, totals=tuple(total for total in table.totals if total.field.name not in GUESSES))

    def to_terminal(self, stream: TextIO) -> str:
        """Return the text for a stream: within a terminal's width, and in colour with ``style="rich"``."""
        columns = columns_of(stream)
        if columns is None:
            return self.to_text()
        if self.view.style != "rich":
            return fitted(lambda width: self.to_text(col_width=width), self.view.lines.width, columns)
        (table,) = written([self._layers(self.view.folded(), in_old_mb=True)], CellStyle())
        after = [*table.notes, *(total.text for total in table.totals)]
        return rich_text(table, after if self.memory is None else [*after, self.memory.render()], stream)

    def _printed(self) -> ModelSummary:
        return replace(self, view=self.view.folded())

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        """Return the table of the layers and, if a step's memory was requested, that of its peak."""
        table = self._layers(self.view.with_look(look))
        return (table,) if self.memory is None else (table, *self.memory._tables({}))

    def _look_of_data(self, table: int, in_frame: bool) -> Chosen:
        """Return the columns of the layers where no others are chosen: these, and those that the summary needs."""
        if table or self.view.col_names is not None:
            return {}
        others = ["unregistered_params"] if self.unregistered else []
        names = FRAME_COLUMNS if in_frame else default_names(False, False)
        return {"columns": (*names, *added_names(self), *others)}

    def plot(
        self, by: str = "num_params", *, top: int = 15, depth: Depth = ..., ax: Axes | None = None,
        width: str | None = None,
    ) -> Axes:  # fmt: skip
        """Plot the ``top`` layers as bars, coloured by class.

        ``by`` is ``num_params``, ``mult_adds`` or ``output_bytes``; after ``summary(memory=...)`` also ``saved_bytes``,
        ``grad_bytes`` or ``optimizer_bytes``. Without ``ax`` a new figure is made, "column", "page" or "notebook" wide.
        Raises :class:`InputError`, or :class:`MissingExtraError` without matplotlib.
        """
        return draw_layers(
            self, by, top, self.view.depth if isinstance(depth, EllipsisType) else depth, placed(ax, width)
        )

    def to_mermaid(self, kind: str | None = None, depth: int | None = None) -> str:
        """Return the model as a Mermaid diagram, which GitHub draws from a ``mermaid`` block.

        ``kind`` is "flow" (the calls in order; repeated blocks are drawn once, with their number) or "class" (a box per
        module class; one class with different contents has several); None is the flow, or the classes if nothing ran.
        ``depth`` limits the nesting; None draws as deep as Mermaid can. Raises :class:`InputError`, also for the flow
        of a static summary.

        >>> from torch import nn
        >>> from torchsummary_plus import summary
        >>> print(summary(nn.Sequential(nn.Linear(8, 4)), (8,), verbose=0).to_mermaid(), end="")
        flowchart TB
            given(["input [-1, 8]"])
            subgraph s0["Sequential"]
                direction TB
                n1["0: Linear<br/>[-1, 4]<br/>36 params"]
            end
            returned(["output [-1, 4]"])
            given --> n1
            n1 --> returned
        """
        return graphs.mermaid_text(self, kind or ("class" if self.run.kind == "none" else "flow"), depth)

    def graph(self, *, depth: int | None = None, repeats: str = "fold") -> ModelGraph:
        """Return the graph of the calls down to ``depth``, without running the model again.

        ``repeats="fold"`` draws equal neighbours once, with their number; "show" draws each. Raises
        :class:`InputError`, also for a static summary.
        """
        if repeats not in REPEATS:
            raise choice_error("repeats", repeats, REPEATS)
        check_layout("tree", depth)
        if self.flow is None:
            raise InputError("nothing ran, so there is no graph of calls; pass input_size= or input_data=")
        nodes, edges = graphs.graph_of(self, depth, repeats == "fold")
        return ModelGraph(self.rows[0].class_name, tuple(nodes), tuple(edges), self.run)

    def _check(self) -> None:
        if not is_tree(self.rows) or sum(row.num_params for row in self.rows) != self.total_params:
            raise InputError("the ModelSummary contradicts itself: its rows are no tree, or add up to another total")
        super()._check()
        self.tables(columns=("input_size", "connected_to", "params_arithmetic", "mult_adds_arithmetic"))
        self.to_mermaid()
        if self.flow is not None:
            self.graph()._check()

    def _headline(self) -> tuple[str, str]:
        batch = "any batch" if self.run.batch_size is None else f"batch of {self.run.batch_size:,}"
        what_ran = "no input" if self.run.kind == "none" else f"Forward, {batch}"
        if self.memory is None:
            return self.rows[0].class_name, what_ran
        step, peak = self.memory._headline()
        return self.rows[0].class_name, f"{step}. {self.memory.tables()[0].answer}. {peak}"

    def _sections(self) -> tuple[Section, ...]:
        shown = ... if self.view.col_names else REPORT_COLUMNS + added_names(self)
        (table, *_) = self.tables(columns=shown, depth=None, style="tree", units="auto")
        return (("Layers", (table,), ""), *(() if self.memory is None else self.memory._sections()))

    def __repr__(self) -> str:
        if is_echo(self):
            count = report_totals(self)[0].cell.text
            return f"<ModelSummary of {one_line(self.rows[0].class_name)}: {count} parameters>"
        return str(self)

    def _ipython_display_(self) -> None:
        """Show nothing at the end of a notebook's statement that has already shown the summary, else the usual view."""
        if not (takes_html() and is_echo(self)):
            raise NotImplementedError
