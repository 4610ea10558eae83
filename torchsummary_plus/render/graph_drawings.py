"""A graph -> Graphviz DOT and SVG.

Graphviz draws the SVG where it is installed, else it is a column of boxes in the order of the calls.
"""

from __future__ import annotations

import html
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from math import sqrt

from ..data.errors import UnsupportedError, choice_error, need_extra
from ..data.records import GraphEdge, GraphNode
from ..data.units import one_line, size_text, structure_text
from ..formats.table import WIDEST, shortened
from .graph_tables import TINT, carried_text, colours, counted, kind_of, nested, title_of

WIDEST_EDGE = 5.0  # The width in points of the edge that carries most.

WIDTHS: dict[str, Callable[[GraphEdge, Mapping[int, GraphNode]], int]] = {
    "bytes": lambda edge, nodes: edge.nbytes,
    "mult_adds": lambda edge, nodes: nodes[edge.target].mult_adds,
}
"""What an edge's width may show: the bytes it carries, or the multiply-adds of the node that reads it."""

DIRECTIONS = ("TB", "LR", "BT", "RL")

LEGEND = 4  # The kinds in a row of the legend.


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
    for level, node in nested(nodes):
        pad = "  " * (level + 1)
        if node is None:
            lines.append(f"{pad}}}")
        elif node.kind == "group":
            lines.append(f"{pad}subgraph cluster_{node.index} {{")
            lines.append(f"{pad}  label={_quoted(title_of(node))}; labeljust=l; style=rounded")
        else:
            lines.append(f"{pad}{_id(node.index)} [{_attributes(node, colour_of)}]")
    for number, edge in enumerate(edges):
        more = f", penwidth={wide[number]:.2f}, arrowsize={max(0.4, 0.7 - wide[number] / 12):.2f}" if wide else ""
        label = _quoted(carried_text(edge))
        tip = _quoted(f"{carried_text(edge)}, {size_text(edge.nbytes)}")
        lines.append(f"  {_id(edge.source)} -> {_id(edge.target)} [label={label}, edgetooltip={tip}{more}]")
    return "\n".join([*lines, *_dot_legend(colour_of), "}", ""])


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
    return [max(0.5, WIDEST_EDGE * sqrt(value / most)) for value in amounts]


def _attributes(node: GraphNode, colour_of: Mapping[str, str]) -> str:
    lines = [title_of(node)]
    if node.kind in ("input", "output"):
        return f"label={_quoted(lines[0])}, shape=ellipse"
    if node.num_params:
        lines.append(counted(node.num_params))
    colour = colour_of.get(kind_of(node))
    fill = f', fillcolor="{colour}{TINT}"' if colour else ""
    shape = ', style="filled,rounded"' if node.kind == "function" else ""
    tip = _quoted(_tip(node))
    return f"label={_quoted(*lines)}, tooltip={tip}{fill}{shape}"


def _tip(node: GraphNode) -> str:
    return f"{node.path or node.class_name}: {node.mult_adds:,} mult-adds, {size_text(node.output_bytes)}"


def _dot_legend(colour_of: Mapping[str, str]) -> list[str]:
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


STYLE = """<style>
.tsp-drawing { background: var(--tsp-back, light-dark(#ffffff, #15181d)) }
.tsp-drawing:root { color-scheme: light dark }
.tsp-drawing text { fill: light-dark(#1b2027, #e4e8ee) }
.tsp-drawing :is(.node, .cluster, .edge) :is(path, polygon, ellipse, rect) { stroke: light-dark(#57606a, #8b949e) }
.tsp-drawing .edge polygon { fill: light-dark(#57606a, #8b949e) }
</style>
"""
"""Colours and paper of both schemes; a reader without styles sees the attributes, which suit white paper."""

LETTER, LINE, FONT = 6.8, 14, 11
"""The mean width of a letter of a title, the height of a line, and the font's size, in pixels."""

PAD, GAP, LANE = 8, 18, 10  # Pixels inside a box or frame, between two boxes, and between two lines side by side.
ARROW = 5  # The length of an arrow's head.

BOLD = ' font-weight="600"'


def has_graphviz() -> bool:
    """Return whether both the package graphviz and Graphviz's program are there."""
    return find_spec("graphviz") is not None and shutil.which("dot") is not None


def graphviz_svg(dot: str) -> str:
    """Return Graphviz's drawing of a DOT graph.

    Raises :class:`MissingExtraError` without the package graphviz, :class:`UnsupportedError` without its program.
    """
    graphviz = need_extra("graphviz", "graph")
    try:
        drawn = graphviz.Source(dot).pipe(format="svg", encoding="utf-8")
    except graphviz.ExecutableNotFound as error:
        raise UnsupportedError(
            "Graphviz's program `dot` is not on PATH: install Graphviz (apt install graphviz, brew install graphviz, "
            "https://graphviz.org/download), or leave out direction=, for a drawing that needs no program"
        ) from error
    _, opening, rest = str(drawn).partition("<svg")
    head, end, body = rest.partition(">\n")
    plain = re.sub(r' id="[^"]*"', "", head + end + STYLE + body)  # Ids clash on a page with several drawings.
    return f'{opening} class="tsp-drawing"{plain}'


@dataclass(eq=False)
class _Shape:
    """A box of a call, or a frame around those of a group; x is 0 in the middle of the boxes."""

    node: GraphNode
    lines: list[str]
    top: float
    bottom: float
    left: float
    right: float


Lanes = dict[tuple[int, int], float]  # The x of the lines beside the boxes, by the two boxes that each one connects.


def column_svg(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], width: str | None = None) -> str:
    """Return a drawing with the calls one below the other, in nested frames, and lines between them.

    An edge to the next box is an arrow down, any other one a line to the right of what it passes; those that leave the
    same box share theirs. Raises :class:`InputError` for an unknown width.
    """
    wide, colour_of = edge_widths(nodes, edges, width) or [1.0] * len(edges), colours(nodes)
    shapes = _stacked(nodes)
    lanes, right = _in_lanes(shapes, edges)
    left = min([shape.left for shape in shapes.values()], default=0)
    legend, above = _legend(colour_of, left, right)
    bottom = max([shape.bottom for shape in shapes.values()], default=0)
    across, down = right - left + 2 * PAD, above + bottom + 2 * PAD
    opening = (
        f'<svg class="tsp-drawing" xmlns="http://www.w3.org/2000/svg" width="{across:.0f}" height="{down:.0f}" '
        f'viewBox="{left - PAD:.1f} {-above - PAD:.1f} {across:.1f} {down:.1f}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}">'
    )
    boxes = [_box(shape, colour_of.get(kind_of(shape.node), "")) for shape in shapes.values()]
    lines = [_line(edge, shapes, lanes, points) for edge, points in zip(edges, wide)]
    return "\n".join([opening, STYLE.rstrip(), *legend, *boxes, *lines, "</svg>", ""])


def _stacked(nodes: Sequence[GraphNode]) -> dict[int, _Shape]:
    """Return the shapes by the number of their node, from the top down; frames have no width yet."""
    shapes: dict[int, _Shape] = {}
    frames: list[_Shape] = []
    y = 0.0
    for _, node in nested(nodes):
        if node is None:
            frames.pop().bottom = y - GAP + PAD
            y += PAD
            continue
        lines = _lines(node)
        bottom = y + LINE * len(lines) + PAD
        half = 0 if node.kind == "group" else max(map(len, lines)) * LETTER / 2 + PAD
        shapes[node.index] = _Shape(node, lines, y, bottom, -half, half)
        if node.kind == "group":
            frames.append(shapes[node.index])
        y = bottom + (0 if node.kind == "group" else GAP)
    return shapes


def _lines(node: GraphNode) -> list[str]:
    """Return the text of a box: its title, then what it returns and its parameters."""
    title, result = title_of(node), structure_text(node.outputs)
    if node.kind in ("input", "output"):
        lines = [f"{title} {result}"]
    else:
        count = [counted(node.num_params)] if node.num_params else []
        lines = [title] if node.kind == "group" else [title, ", ".join([result, *count])]
    return [shortened(one_line(line), WIDEST) for line in lines]


def _in_lanes(shapes: dict[int, _Shape], edges: Sequence[GraphEdge]) -> tuple[Lanes, float]:
    """Return the lines beside the boxes, and the right side of all; frames are widened to hold what is in them.

    A line runs to the right of everything in the innermost frame around both of its ends.
    """
    boxes = [index for index, shape in shapes.items() if shape.node.kind != "group"]
    following = dict(pairwise(boxes))
    trunks: defaultdict[int | None, defaultdict[int, list[GraphEdge]]] = defaultdict(lambda: defaultdict(list))
    for edge in edges:
        if following.get(edge.source) != edge.target:
            around = set(_frames(edge.source, shapes))
            trunks[next(frame for frame in _frames(edge.target, shapes) if frame in around)][edge.source].append(edge)
    inside: defaultdict[int | None, list[_Shape]] = defaultdict(list)
    for box in shapes.values():
        inside[box.node.parent].append(box)
    lanes: Lanes = {}
    right = 0.0
    for frame in [*(index for index in reversed(shapes) if index in inside), None]:
        right = max([shape.right for shape in inside[frame]], default=0)
        taken: list[list[tuple[float, float]]] = []
        spans = [(_span(trunk, shapes), trunk) for trunk in trunks[frame].values()]
        for (top, bottom), trunk in sorted(spans, key=lambda item: item[0][1] - item[0][0]):
            x = right + LANE * _free_lane(taken, top, bottom)
            lanes.update({(edge.source, edge.target): x for edge in trunk})
        right += LANE * len(taken)
        if frame is not None:
            outer = shapes[frame]
            title = 2 * PAD + len(outer.lines[0]) * LETTER  # Left of the middle, where arrows come in.
            outer.left = min(-title, *(shape.left - PAD for shape in inside[frame]))
            outer.right = right + PAD
    return lanes, right


def _frames(index: int, shapes: Mapping[int, _Shape]) -> Iterator[int | None]:
    """Yield the frames around a box, from the inside out; the last one is None, the drawing."""
    parent = shapes[index].node.parent
    while parent is not None:
        yield parent
        parent = shapes[parent].node.parent
    yield None


def _span(trunk: Sequence[GraphEdge], shapes: Mapping[int, _Shape]) -> tuple[float, float]:
    """Return the highest and the lowest point of edges that leave the same box."""
    ends = [end for edge in trunk for end in (_leaves(shapes[edge.source]), _enters(shapes[edge.target]))]
    return min(ends), max(ends)


def _free_lane(taken: list[list[tuple[float, float]]], top: float, bottom: float) -> int:
    """Take the first lane that is free between two heights, and return its number, from 1."""
    for number, lane in enumerate(taken, 1):
        if all(bottom < start or stop < top for start, stop in lane):
            lane.append((top, bottom))
            return number
    taken.append([(top, bottom)])
    return len(taken)


def _leaves(shape: _Shape) -> float:
    """Return the height at which lines leave the side of a box."""
    return shape.bottom - 1.5 * ARROW


def _enters(shape: _Shape) -> float:
    """Return the height at which lines enter the side of a box."""
    return shape.top + 1.5 * ARROW


def _box(shape: _Shape, colour: str) -> str:
    """Return a box with its text, or a frame with its title."""
    node, height = shape.node, shape.bottom - shape.top
    rounded = {"input": height / 2, "output": height / 2, "function": PAD, "group": PAD}.get(node.kind, 2)
    fill = f'fill="{colour}" fill-opacity="0.3"' if colour else 'fill="none"'
    box = (
        f'<rect x="{shape.left:.1f}" y="{shape.top:.1f}" width="{shape.right - shape.left:.1f}" '
        f'height="{height:.1f}" rx="{rounded:.1f}" {fill} stroke="#57606a"/>'
    )
    x, anchor = (shape.left + PAD, "start") if node.kind == "group" else (0, "middle")
    texts = [
        f'<text x="{x:.1f}" y="{shape.top + LINE * number:.1f}" text-anchor="{anchor}"'
        f"{'' if number > 1 else BOLD}>{html.escape(line)}</text>"
        for number, line in enumerate(shape.lines, 1)
    ]
    kind = "cluster" if node.kind == "group" else "node"
    return f'<g class="{kind}"><title>{html.escape(one_line(_tip(node)))}</title>{box}{"".join(texts)}</g>'


def _line(edge: GraphEdge, shapes: Mapping[int, _Shape], lanes: Lanes, points: float) -> str:
    """Return an edge: an arrow to the next box with the shape that it carries if no box says it, or one beside."""
    source, target = shapes[edge.source], shapes[edge.target]
    carried, x = carried_text(edge), lanes.get((edge.source, edge.target))
    label = ""
    if x is None:
        path, tip = f"M0 {source.bottom:.1f}V{target.top - ARROW:.1f}", (0.0, target.top)
        sides = f"{-ARROW / 2},{target.top - ARROW:.1f} {ARROW / 2},{target.top - ARROW:.1f}"
        if carried != structure_text(source.node.outputs):
            label = f'<text x="{ARROW}" y="{target.top - ARROW:.1f}" font-size="9">{html.escape(carried)}</text>'
    else:
        tip = (target.right, _enters(target))
        path = f"M{source.right:.1f} {_leaves(source):.1f}H{x:.1f}V{tip[1]:.1f}H{tip[0] + ARROW:.1f}"
        sides = " ".join(f"{tip[0] + ARROW:.1f},{tip[1] + side:.1f}" for side in (-ARROW / 2, ARROW / 2))
    said = html.escape(one_line(f"{carried}, {size_text(edge.nbytes)}"))
    return (
        f'<g class="edge"><title>{said}</title>'
        f'<path d="{path}" fill="none" stroke="#57606a" stroke-width="{points:.2f}" stroke-linejoin="round"/>'
        f'<polygon points="{tip[0]:.1f},{tip[1]:.1f} {sides}" fill="#57606a"/>{label}</g>'
    )


def _legend(colour_of: Mapping[str, str], left: float, right: float) -> tuple[list[str], float]:
    """Return the names of the colours, if there are several, on lines above the drawing, and their height."""
    if len(colour_of) < 2:
        return [], 0
    places: list[tuple[float, int]] = []
    x, row = left, 0
    for kind in colour_of:
        across = len(one_line(kind)) * LETTER + 2 * GAP
        if x + across > right and x > left:
            x, row = left, row + 1
        places.append((x, row))
        x += across
    height = LINE * (row + 1) + GAP
    entries = [
        f'<g class="node legend"><rect x="{x:.1f}" y="{LINE * row - height:.1f}" width="10" height="10" rx="2" '
        f'fill="{colour}" fill-opacity="0.3" stroke="#57606a"/>'
        f'<text x="{x + 14:.1f}" y="{LINE * row - height + 9:.1f}">{html.escape(one_line(kind))}</text></g>'
        for (x, row), (kind, colour) in zip(places, colour_of.items())
    ]
    return entries, height
