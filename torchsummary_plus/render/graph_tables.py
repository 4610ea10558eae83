"""A graph -> its tables: nodes, with what each reads, and edges; and their words, for every format."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..data.errors import choice_error
from ..data.records import GraphEdge, GraphNode
from ..data.units import structure_text
from ..formats.table import Field, Table, TableRow, cells
from .figure import CLASSES

FUNCTION, FUNCTIONS = "function", "#6E7781"
"""The kind of all boxes of functions, and its colour."""

TINT = "4D"
"""The opacity of a box's colour, in hexadecimal, which leaves its text readable on white and on black paper."""


def title_of(node: GraphNode) -> str:
    """Return a node's title: its name and class, the number of repeats, and which call of a shared module it is.

    >>> title_of(GraphNode(3, 0, "module", "h.0", "0", "Block", repeats=12, until="11"))
    '0 to 11: Block x 12'
    >>> title_of(GraphNode(4, 0, "module", "fc", "fc", "Linear", call=2, calls=3, shared=True))
    'fc: Linear (call 2 of 3)'
    """
    if node.kind in ("input", "output"):
        return f"{node.kind} {node.name}".rstrip()
    names = f"{node.name} to {node.until}" if node.until and node.until != node.name else node.name
    title = f"{names}: {node.class_name}" if names else node.class_name
    if node.repeats > 1:
        title += f" x {node.repeats:,}"
    elif node.calls > 1:
        return f"{title} (call {node.call:,} of {node.calls:,})"
    return f"{title} (shared)" if node.shared else title


def carried_text(edge: GraphEdge) -> str:
    """Return the shapes of the tensors on an edge, each with the number of tensors that have it.

    >>> from torchsummary_plus.data.records import TensorSpec
    >>> carried_text(GraphEdge(1, 2, (TensorSpec((2, 3), "float32", 24),)))
    '[2, 3]'
    """
    shapes = Counter(map(structure_text, edge.tensors))
    return ", ".join(shape if number == 1 else f"{number} x {shape}" for shape, number in shapes.items())


def kind_of(node: GraphNode) -> str:
    """Return what the colour of a box stands for: the class of a module, or that it is a function."""
    return FUNCTION if node.kind == "function" else node.class_name


def colours(nodes: Iterable[GraphNode]) -> dict[str, str]:
    """Return the colour of each kind of box that has one: functions, and the most frequent classes of modules.

    >>> colours([GraphNode(1, 0, "module", "fc", "fc", "Linear"), GraphNode(2, 0, "function", "", "add", "add")])
    {'Linear': '#0072B2', 'function': '#6E7781'}
    """
    counts = Counter(kind_of(node) for node in nodes if node.kind in ("module", "function"))
    functions = {FUNCTION: FUNCTIONS} if counts.pop(FUNCTION, 0) else {}
    return {**dict(zip([name for name, _ in counts.most_common()], CLASSES)), **functions}


def nested(nodes: Iterable[GraphNode]) -> Iterator[tuple[int, GraphNode | None]]:
    """Yield the nodes with their level, each group before what is inside it; None is the end of a group."""
    groups: list[int] = []
    for node in nodes:
        while groups and groups[-1] != node.parent:
            groups.pop()
            yield len(groups), None
        yield len(groups), node
        if node.kind == "group":
            groups.append(node.index)
    yield from ((level, None) for level in range(len(groups) - 1, -1, -1))


def counted(count: int) -> str:
    """Return a parameter count with its unit.

    >>> counted(1), counted(23_454_912)
    ('1 param', '23,454,912 params')
    """
    return f"{count:,} param{'' if count == 1 else 's'}"


def called(node: GraphNode) -> str:
    """Return what other rows call a node: its path, its number if its module is called often, or its function.

    >>> called(GraphNode(4, 0, "module", "encoder.fc", "fc", "Linear", call=2, calls=3))
    'encoder.fc (call 2)'
    """
    if node.kind in ("input", "output"):
        return title_of(node)
    if node.kind == "function":
        return f"{node.class_name} {node.index}"
    name = node.path or node.class_name
    return f"{name} (call {node.call})" if node.calls > 1 else name


NODE_FIELDS = {
    name: Field(name, heading, unit)
    for name, heading, unit in (
        ("kind", "Kind", ""), ("connected_to", "Connected to", ""), ("output_size", "Output Shape", ""),
        ("num_params", "Param #", "elements"), ("mult_adds", "Mult-Adds", "mult-adds"),
        ("output_bytes", "Output Bytes", "bytes"), ("repeats", "Repeats", "count"),
    )
}  # fmt: skip

EDGE_FIELDS = (Field("target", "To"), Field("tensors", "Shapes"), Field("nbytes", "Bytes", "bytes"))
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
    rows, read_rows = [], []
    for level, node in nested(nodes):
        if node is not None:
            values = {"connected_to": ", ".join(read[node.index]) or None, "output_size": structure_text(node.outputs)}
            own = tuple(NODE_FIELDS[n].cell(values[n] if n in values else getattr(node, n), "--") for n in names)
            rows.append(TableRow(title_of(node), node.path, level, own))
    for edge in edges:
        source = by_index[edge.source]
        own = cells(EDGE_FIELDS, (called(by_index[edge.target]), carried_text(edge), edge.nbytes))
        read_rows.append(TableRow(called(source), source.path, 0, own))
    first = Table(name, "Node", tuple(NODE_FIELDS[column] for column in names), tuple(rows))
    return first, Table("Edges", "From", EDGE_FIELDS, tuple(read_rows))
