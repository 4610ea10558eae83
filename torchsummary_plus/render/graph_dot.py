"""A graph -> Graphviz DOT, and from that SVG."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from math import sqrt

from ..data.errors import UnsupportedError, choice_error
from ..data.extras import need_extra
from ..data.records import GraphEdge, GraphNode
from ..data.units import one_line, size_text
from .graph_text import carried_text, title_of

WIDEST = 5.0
"""The width in points of the edge that carries most."""

WIDTHS: dict[str, Callable[[GraphEdge, Mapping[int, GraphNode]], int]] = {
    "bytes": lambda edge, nodes: edge.nbytes,
    "mult_adds": lambda edge, nodes: nodes[edge.target].mult_adds,
}
"""What an edge's width may show: the bytes it carries, or the multiply-adds of the node that reads it."""

DIRECTIONS = ("TB", "LR", "BT", "RL")

FILLS = {"input": "#e9eef7", "output": "#e9eef7", "function": "#f4f4f4", "module": "#ffffff", "shared": "#fff4d6"}


def dot_text(
    name: str, nodes: Iterable[GraphNode], edges: Sequence[GraphEdge], width: str | None = None, direction: str = "TB"
) -> str:
    """Return a graph in Graphviz's DOT language. Raises :class:`InputError` for an unknown width or direction."""
    if width is not None and width not in WIDTHS:
        raise choice_error("width", width, WIDTHS)
    if direction not in DIRECTIONS:
        raise choice_error("direction", direction, DIRECTIONS)
    by_index = {node.index: node for node in nodes}
    lines = [
        f"digraph {_quoted(name)} {{",
        f"  graph [rankdir={direction}, bgcolor=transparent, fontname=Helvetica, fontsize=11]",
        "  graph [nodesep=0.25, ranksep=0.3]",
        "  node [shape=box, style=filled, fillcolor=white, fontname=Helvetica, fontsize=11, height=0.3, margin=0.1]",
        "  edge [fontname=Helvetica, fontsize=9, arrowsize=0.6]",
    ]
    open_groups: list[int] = []
    for node in by_index.values():
        while open_groups and open_groups[-1] != node.parent:
            open_groups.pop()
            lines.append("  " * (len(open_groups) + 1) + "}")
        pad = "  " * (len(open_groups) + 1)
        if node.kind == "group":
            kind = "group shared" if _is_shared(node) else "group"
            lines.append(f"{pad}subgraph cluster_{node.index} {{")
            lines.append(f'{pad}  label={_quoted(title_of(node))}; labeljust=l; style=rounded; class="{kind}"')
            open_groups.append(node.index)
        else:
            lines.append(f"{pad}{_id(node.index)} [{_attributes(node)}]")
    lines += ["  " * level + "}" for level in range(len(open_groups), 0, -1)]
    wide = {} if width is None else _widths(edges, by_index, WIDTHS[width])
    for number, edge in enumerate(edges):
        more = f", penwidth={wide[number]:.2f}, arrowsize={max(0.4, 0.7 - wide[number] / 12):.2f}" if wide else ""
        label = _quoted(carried_text(edge))
        tip = _quoted(f"{carried_text(edge)}, {size_text(edge.nbytes)}")
        lines.append(f"  {_id(edge.source)} -> {_id(edge.target)} [label={label}, edgetooltip={tip}{more}]")
    return "\n".join([*lines, "}", ""])


def _widths(
    edges: Sequence[GraphEdge],
    nodes: Mapping[int, GraphNode],
    amount: Callable[[GraphEdge, Mapping[int, GraphNode]], int],
) -> dict[int, float]:
    """Return each edge's width in points: the square root of its share of the largest, at least 0.5."""
    amounts = [amount(edge, nodes) for edge in edges]
    most = max(amounts, default=0) or 1
    return {number: max(0.5, WIDEST * sqrt(value / most)) for number, value in enumerate(amounts)}


def _attributes(node: GraphNode) -> str:
    shared = _is_shared(node)
    lines = [title_of(node)]
    if node.kind in ("input", "output"):
        return f'label={_quoted(lines[0])}, shape=ellipse, fillcolor="{FILLS[node.kind]}", class="{node.kind}"'
    if node.num_params:
        lines.append(f"{node.num_params:,} param{'' if node.num_params == 1 else 's'}")
    fill = FILLS["shared" if shared else node.kind]
    shape = ', style="filled,rounded"' if node.kind == "function" else ""
    kind = f"{node.kind} shared" if shared else node.kind
    tip = _quoted(f"{node.path or node.class_name}: {node.mult_adds:,} mult-adds, {size_text(node.output_bytes)}")
    return f'label={_quoted(*lines)}, fillcolor="{fill}", tooltip={tip}, class="{kind}"{shape}'


def _is_shared(node: GraphNode) -> bool:
    return node.shared or node.calls > 1


def _id(index: int) -> str:
    return f"n{index}" if index >= 0 else f"t{-index}"


def _quoted(*lines: str) -> str:
    r"""Return lines of text as one DOT string, in which nothing but the line break is special.

    >>> print(_quoted('a "b"', "c\\n"))
    "a \"b\"\nc\\n"
    """
    return '"' + "\\n".join(one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


STYLE = """<style>
text { fill: #1f2328; stroke: none }
.node path, .node polygon, .node ellipse { stroke: #57606a }
.cluster path, .cluster polygon { stroke: #8c959f; fill: none }
.edge path { stroke: #57606a; fill: none }
.edge polygon { stroke: #57606a; fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .node path, .node polygon, .node ellipse { stroke: #8b949e; fill: #161b22 }
  .node.function path, .node.function polygon { fill: #21262d }
  .node.input ellipse, .node.output ellipse { fill: #1c2a41 }
  .node.shared path, .node.shared polygon { fill: #3d2f0d }
  .cluster path, .cluster polygon { stroke: #6e7681 }
  .edge path { stroke: #8b949e }
  .edge polygon { stroke: #8b949e; fill: #8b949e }
}
@media print { text { fill: #000 } }
</style>
"""
"""Colours of both schemes; a reader without styles sees those that Graphviz writes."""


def svg_text(dot: str) -> str:
    """Return a drawing of a DOT graph as SVG that follows the reader's light or dark scheme.

    Raises :class:`MissingExtraError` without the package graphviz, :class:`UnsupportedError` without its program.
    """
    graphviz = need_extra("graphviz", "graph")
    try:
        drawn = graphviz.Source(dot).pipe(format="svg", encoding="utf-8")
    except graphviz.ExecutableNotFound as error:
        raise UnsupportedError(
            "Graphviz's program `dot` is not on PATH: install Graphviz (apt install graphviz, brew install graphviz, "
            "https://graphviz.org/download), or use to_dot() or to_mermaid(), which need no program"
        ) from error
    _, opening, rest = str(drawn).partition("<svg")
    head, end, body = rest.partition(">\n")
    return _unique(opening + head + end + STYLE + body)


def _unique(svg: str) -> str:
    """Number the ids, so that they are unique on a page with several drawings."""
    number = next(_drawings)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>graph{number}-", svg)


_drawings = count(1)
