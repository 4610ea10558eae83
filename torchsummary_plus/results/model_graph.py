"""ModelGraph: the graph of a model's calls as data, with its views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..data.errors import InputError, choice_error
from ..data.records import GraphEdge, GraphNode, Run
from ..data.units import one_line
from ..render.graph import graph_of
from ..render.graph_formats import column_svg, dot_text, graph_lines, graph_tables, graphviz_svg, has_graphviz
from ..table.columns import check_layout
from ..table.lines import REPEATS
from ..table.rows import Report
from .views import Chosen, Section, ShownLook, Views

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..formats.table import Table


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
        return "\n".join([*graph_lines(self.nodes, self.edges), ""])

    def to_dot(self, *, width: str | None = None, direction: str = "TB") -> str:
        """Return Graphviz DOT text, with the shapes on the edges.

        ``width`` makes edges wider by the "bytes" they carry or by the "mult_adds" of the node that reads them;
        ``direction`` is "TB", "LR", "BT" or "RL". Raises :class:`InputError` for another.

        >>> from torch import nn
        >>> from torchsummary_plus import graph
        >>> print(graph(nn.Sequential(nn.Linear(8, 4)), (8,)).to_dot().splitlines()[-2].strip())
        n1 -> t1 [label="[-1, 4]", edgetooltip="[-1, 4], 16 B"]
        """
        return dot_text(self.name, self.nodes, self.edges, width, direction)

    def to_svg(self, *, width: str | None = None, direction: str = "TB") -> str:
        """Return a drawing as SVG, which follows the reader's light or dark scheme.

        Graphviz draws :meth:`to_dot` if the extra "graph" and its program are installed, else the calls are one below
        the other in their order. Only Graphviz draws in other directions: they raise :class:`MissingExtraError` without
        the extra, :class:`UnsupportedError` without the program.
        """
        dot = self.to_dot(width=width, direction=direction)
        is_drawn = direction != "TB" or has_graphviz()
        return graphviz_svg(dot) if is_drawn else column_svg(self.nodes, self.edges, width)

    def to_html(self, **look: Unpack[ShownLook]) -> str:
        """Return the drawing, and the tables below it, as an HTML fragment for any page; see :meth:`to_svg`."""
        from ..formats.html import fragment

        return fragment(self.tables(**look), self.to_svg())

    def _sections(self) -> tuple[Section, ...]:
        return ((self.name, self.tables(), self.to_svg()),)

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        return graph_tables(self.name, self.nodes, self.edges, look.get("columns"))

    def __repr__(self) -> str:
        return f"<ModelGraph of {one_line(self.name)}: {len(self.nodes):,} nodes, {len(self.edges):,} edges>"


def as_graph(report: Report, depth: int | None, repeats: str) -> ModelGraph:
    """Return a report's graph. Raises :class:`InputError` for an unknown depth or repeats, or if nothing ran."""
    if repeats not in REPEATS:
        raise choice_error("repeats", repeats, REPEATS)
    check_layout("tree", depth)
    if report.flow is None:
        raise InputError("nothing ran, so there is no graph of calls; pass input_size= or input_data=")
    nodes, edges = graph_of(report, depth, repeats == "fold")
    return ModelGraph(report.rows[0].class_name, tuple(nodes), tuple(edges), report.run)
