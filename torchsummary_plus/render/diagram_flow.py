"""A graph -> a Mermaid flowchart: calls in the order they begin, nested, with the tensors between them."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.records import GraphEdge, GraphNode
from ..data.units import structure_text
from ..report.graph import graph_of
from ..table.rows import Report
from .diagram_text import counted, safe
from .graph_text import TINT, carried_text, colours, kind_of, title_of


def flow_lines(report: Report, depth: int) -> list[str]:
    """Return the lines of a flowchart of the calls down to ``depth``."""
    return graph_lines(*graph_of(report, depth))


def graph_lines(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> list[str]:
    """Return the lines of a flowchart, with boxes coloured by kind if there are several kinds.

    An edge shows the shape it carries if the node it comes from does not.
    """
    lines = ["flowchart TB"]
    of_kind = colours(nodes)
    of_kind = of_kind if len(of_kind) > 1 else {}
    kinds = {kind: number for number, kind in enumerate(of_kind)}
    shown: dict[int, GraphNode] = {}
    open_groups: list[int] = []
    for node in nodes:
        while open_groups and open_groups[-1] != node.parent:
            open_groups.pop()
            lines.append("    " * (len(open_groups) + 1) + "end")
        pad = "    " * (len(open_groups) + 1)
        shown[node.index] = node
        if node.kind == "group":
            lines += [f'{pad}subgraph s{node.index}["{_title(node)}"]', f"{pad}    direction TB"]
            open_groups.append(node.index)
        else:
            number = kinds.get(kind_of(node))
            lines.append(f"{pad}{_name(node)}{_node(node)}{'' if number is None else f':::kind{number}'}")
    lines += ["    " * (level + 1) + "end" for level in range(len(open_groups) - 1, -1, -1)]
    for edge in edges:
        source, target = shown[edge.source], shown[edge.target]
        lines.append(f"    {_name(source)} -->{_carried(edge, source)} {_name(target)}")
    return [*lines, *(f"    classDef kind{n} fill:{colour}{TINT}" for n, colour in enumerate(of_kind.values()))]


def _name(node: GraphNode) -> str:
    if node.kind == "input":
        return "given" if node.index == -2 else f"given{-node.index - 1}"
    return "returned" if node.kind == "output" else f"n{node.index}"


def _title(node: GraphNode) -> str:
    return safe(title_of(node))


def _node(node: GraphNode) -> str:
    """Return a node with its shape and parameters; rounded for a function, an input or an output."""
    shape = structure_text(node.outputs)
    if node.kind in ("input", "output"):
        return f'(["{_title(node)} {safe(shape)}"])'
    lines = [_title(node), safe(shape), *([counted(node.num_params)] if node.num_params else [])]
    text = "<br/>".join(lines)
    return f'(["{text}"])' if node.kind == "function" else f'["{text}"]'


def _carried(edge: GraphEdge, source: GraphNode) -> str:
    text = carried_text(edge)
    return "" if text == structure_text(source.outputs) else f'|"{safe(text)}"|'
