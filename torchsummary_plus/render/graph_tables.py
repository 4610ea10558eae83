"""A graph -> its tables: nodes, with what each reads, and edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..data.errors import choice_error
from ..data.records import GraphEdge, GraphNode
from ..data.units import structure_text
from ..formats.table import Cell, Field, Table, TableRow
from .graph_text import called, carried_text, title_of

NODE_FIELDS = {
    "kind": Field("kind", "Kind"),
    "connected_to": Field("connected_to", "Connected to"),
    "output_size": Field("output_size", "Output Shape"),
    "num_params": Field("num_params", "Param #", "elements"),
    "mult_adds": Field("mult_adds", "Mult-Adds", "mult-adds"),
    "output_bytes": Field("output_bytes", "Output Bytes", "bytes"),
    "repeats": Field("repeats", "Repeats", "count"),
}

DEFAULT_FIELDS = ("kind", "connected_to", "output_size", "num_params", "repeats")


def graph_tables(
    name: str, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], columns: Iterable[str] | None = None
) -> tuple[Table, Table]:
    """Return the table of the nodes and that of the edges. Raises :class:`InputError` for an unknown column."""
    names = DEFAULT_FIELDS if columns is None else ((columns,) if isinstance(columns, str) else tuple(columns))
    for column in names:
        if column not in NODE_FIELDS:
            raise choice_error("column", column, NODE_FIELDS)
    by_index = {node.index: node for node in nodes}
    read = defaultdict(list)
    for edge in edges:
        read[edge.target].append(called(by_index[edge.source]))
    rows = tuple(_row(node, _level(node, by_index), read[node.index], names) for node in nodes)
    first = Table(name, "Node", tuple(NODE_FIELDS[column] for column in names), rows)
    fields = Field("target", "To"), Field("tensors", "Shapes"), Field("nbytes", "Bytes", "bytes")
    return first, Table("Edges", "From", fields, tuple(_edge(edge, by_index) for edge in edges))


def _level(node: GraphNode, by_index: dict[int, GraphNode]) -> int:
    level = 0
    while node.parent is not None:
        node, level = by_index[node.parent], level + 1
    return level


def _row(node: GraphNode, level: int, read: Sequence[str], names: Iterable[str]) -> TableRow:
    cells = {
        "kind": Cell(node.kind, node.kind),
        "connected_to": Cell(", ".join(read) or None, ", ".join(read) or "--"),
        "output_size": Cell(structure_text(node.outputs), structure_text(node.outputs)),
        **{
            column: Cell(n := getattr(node, column), f"{n:,}")
            for column in ("num_params", "mult_adds", "output_bytes", "repeats")
        },
    }
    return TableRow(title_of(node), node.path, level, tuple(cells[name] for name in names))


def _edge(edge: GraphEdge, by_index: dict[int, GraphNode]) -> TableRow:
    source, target = by_index[edge.source], by_index[edge.target]
    cells = called(target), carried_text(edge), edge.nbytes
    return TableRow(
        called(source),
        source.path,
        0,
        tuple(Cell(value, f"{value:,}" if isinstance(value, int) else value) for value in cells),
    )
