"""A graph's nodes and edges as text, for every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..data.records import GraphEdge, GraphNode
from ..data.units import structure_text
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
