"""A graph -> Graphviz DOT."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from math import sqrt

from ..data.errors import choice_error
from ..data.records import GraphEdge, GraphNode
from ..data.units import one_line, size_text
from .graph_text import TINT, carried_text, colours, kind_of, title_of

WIDEST = 5.0
"""The width in points of the edge that carries most."""

WIDTHS: dict[str, Callable[[GraphEdge, Mapping[int, GraphNode]], int]] = {
    "bytes": lambda edge, nodes: edge.nbytes,
    "mult_adds": lambda edge, nodes: nodes[edge.target].mult_adds,
}
"""What an edge's width may show: the bytes it carries, or the multiply-adds of the node that reads it."""

DIRECTIONS = ("TB", "LR", "BT", "RL")

LEGEND = 4
"""The kinds in a row of the legend."""


def dot_text(
    name: str, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], width: str | None = None, direction: str = "TB"
) -> str:
    """Return a graph in Graphviz's DOT language. Raises :class:`InputError` for an unknown width or direction."""
    if direction not in DIRECTIONS:
        raise choice_error("direction", direction, DIRECTIONS)
    wide, colour_of = edge_widths(nodes, edges, width), colours(nodes)
    lines = [
        f"digraph {_quoted(name)} {{",
        f"  graph [rankdir={direction}, bgcolor=transparent, fontname=Helvetica, fontsize=11]",
        "  graph [nodesep=0.25, ranksep=0.3]",
        "  node [shape=box, style=filled, fillcolor=transparent, fontname=Helvetica, fontsize=11]",
        "  node [height=0.3, margin=0.1]",
        "  edge [fontname=Helvetica, fontsize=9, arrowsize=0.6]",
    ]
    open_groups: list[int] = []
    for node in nodes:
        while open_groups and open_groups[-1] != node.parent:
            open_groups.pop()
            lines.append("  " * (len(open_groups) + 1) + "}")
        pad = "  " * (len(open_groups) + 1)
        if node.kind == "group":
            lines.append(f"{pad}subgraph cluster_{node.index} {{")
            lines.append(f"{pad}  label={_quoted(title_of(node))}; labeljust=l; style=rounded")
            open_groups.append(node.index)
        else:
            lines.append(f"{pad}{_id(node.index)} [{_attributes(node, colour_of)}]")
    lines += ["  " * level + "}" for level in range(len(open_groups), 0, -1)]
    for number, edge in enumerate(edges):
        more = f", penwidth={wide[number]:.2f}, arrowsize={max(0.4, 0.7 - wide[number] / 12):.2f}" if wide else ""
        label = _quoted(carried_text(edge))
        tip = _quoted(f"{carried_text(edge)}, {size_text(edge.nbytes)}")
        lines.append(f"  {_id(edge.source)} -> {_id(edge.target)} [label={label}, edgetooltip={tip}{more}]")
    return "\n".join([*lines, *_legend(colour_of), "}", ""])


def edge_widths(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], width: str | None) -> list[float]:
    """Return each edge's width in points: the square root of its share of the largest, at least 0.5; [] without one.

    Raises :class:`InputError` for an unknown one.
    """
    if width is None:
        return []
    if width not in WIDTHS:
        raise choice_error("width", width, WIDTHS)
    by_index = {node.index: node for node in nodes}
    amounts = [WIDTHS[width](edge, by_index) for edge in edges]
    most = max(amounts, default=0) or 1
    return [max(0.5, WIDEST * sqrt(value / most)) for value in amounts]


def _attributes(node: GraphNode, colour_of: Mapping[str, str]) -> str:
    lines = [title_of(node)]
    if node.kind in ("input", "output"):
        return f"label={_quoted(lines[0])}, shape=ellipse"
    if node.num_params:
        lines.append(f"{node.num_params:,} param{'' if node.num_params == 1 else 's'}")
    colour = colour_of.get(kind_of(node))
    fill = f', fillcolor="{colour}{TINT}"' if colour else ""
    shape = ', style="filled,rounded"' if node.kind == "function" else ""
    tip = _quoted(f"{node.path or node.class_name}: {node.mult_adds:,} mult-adds, {size_text(node.output_bytes)}")
    return f"label={_quoted(*lines)}, tooltip={tip}{fill}{shape}"


def _legend(colour_of: Mapping[str, str]) -> list[str]:
    """Return the lines of a graph's label that names the colours, if there are several."""
    cells = [f'<TD BGCOLOR="{colour}{TINT}">{html.escape(one_line(kind))}</TD>' for kind, colour in colour_of.items()]
    rows = ["".join(cells[start : start + LEGEND]) for start in range(0, len(cells), LEGEND)]
    if len(cells) < 2:
        return []
    table = "".join(f"<TR>{row}</TR>" for row in rows)
    return [f'  labelloc=t; label=<<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="4" COLOR="#8C959F">{table}</TABLE>>']


def _id(index: int) -> str:
    return f"n{index}" if index >= 0 else f"t{-index}"


def _quoted(*lines: str) -> str:
    r"""Return lines of text as one DOT string, in which nothing but the line break is special.

    >>> print(_quoted('a "b"', "c\\n"))
    "a \"b\"\nc\\n"
    """
    return '"' + "\\n".join(one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'
