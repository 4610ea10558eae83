"""A graph -> Graphviz DOT and SVG.

Graphviz draws the SVG where it is installed, else it is a column of boxes in the order of the calls.
"""

from __future__ import annotations

import html
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count, pairwise
from math import sqrt

from markupsafe import Markup

from ..data.errors import UnsupportedError, choice_error, need_extra
from ..data.records import GraphEdge, GraphNode
from ..data.units import one_line, size_text, structure_text
from ..formats.html import ENVIRONMENT, source
from ..formats.table import WIDEST, shortened
from .graph_tables import TINT, carried_text, colours, counted, kind_of, nested, title_of

WIDEST_EDGE = 5.0  # The width in points of the edge that carries most.

WIDTHS = ("bytes", "mult_adds")
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
    if len(colour_of) > 1:  # The graph's label names the colours.
        legend = [f'<TD BGCOLOR="{c}{TINT}">{html.escape(one_line(kind))}</TD>' for kind, c in colour_of.items()]
        rows = ("".join(legend[start : start + LEGEND]) for start in range(0, len(legend), LEGEND))
        table = "".join(f"<TR>{row}</TR>" for row in rows)
        head = '<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="4" COLOR="#8C959F">'
        lines.append(f"  labelloc=t; label=<{head}{table}</TABLE>>")
    return "\n".join([*lines, "}", ""])


def edge_widths(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], width: str | None) -> list[float]:
    """Return each edge's width in points: the square root of its share of the largest, at least 0.5."""
    if width is None:
        return []
    if width not in WIDTHS:
        raise choice_error("width", width, WIDTHS)
    work = {node.index: node.mult_adds for node in nodes}
    amounts = [edge.nbytes if width == "bytes" else work[edge.target] for edge in edges]
    most = max(amounts, default=0) or 1
    return [max(0.5, WIDEST_EDGE * sqrt(value / most)) for value in amounts]


def _attributes(node: GraphNode, colour_of: Mapping[str, str]) -> str:
    if node.kind in ("input", "output"):
        return f"label={_quoted(title_of(node))}, shape=ellipse"
    label = _quoted(title_of(node), *([counted(node.num_params)] if node.num_params else []))
    colour = colour_of.get(kind_of(node))
    fill = f', fillcolor="{colour}{TINT}"' if colour else ""
    shape = ', style="filled,rounded"' if node.kind == "function" else ""
    return f"label={label}, tooltip={_quoted(_tip(node))}{fill}{shape}"


def _tip(node: GraphNode) -> str:
    return f"{node.path or node.class_name}: {node.mult_adds:,} mult-adds, {size_text(node.output_bytes)}"


def _id(index: int) -> str:
    return f"n{index}" if index >= 0 else f"t{-index}"


def _quoted(*lines: str) -> str:
    r"""Return lines of text as one DOT string, in which nothing but the line break is special.

    >>> print(_quoted('a "b"', "c\\n"))
    "a \"b\"\nc\\n"
    """
    return '"' + "\\n".join(one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


LETTER, LINE, FONT = 6.8, 14, 11
"""The mean width of a letter of a title, the height of a line, and the font's size, in pixels."""

PAD, GAP, LANE = 8, 18, 10  # Pixels inside a box or frame, between two boxes, and between two lines side by side.
ARROW = 5  # The length of an arrow's head.
SIDE = 1.5 * ARROW  # How far below a box's top lines enter its side, and above its bottom they leave it.
ROUNDING = {"function": PAD, "group": PAD, "module": 2}  # Of the corners of a box; inputs and outputs are round.


def has_graphviz() -> bool:
    """Return whether both the package graphviz and Graphviz's program are there."""
    return find_spec("graphviz") is not None and shutil.which("dot") is not None


def graphviz_svg(dot: str) -> str:
    """Return Graphviz's drawing of a DOT graph. Raises an error without the package graphviz or its program."""
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
    styled = f"{head}{end}{source('drawing.css')}\n{body}"
    plain = re.sub(r' id="[^"]*"', "", styled)  # Ids clash on a page with several drawings.
    return f'{opening} class="tsp-drawing"{plain}'


@dataclass(eq=False)
class _Shape:
    """A box of a call, or a frame around those of a group; x is 0 in the middle of the boxes.

    ``around`` has the nodes of the frames around it, from the inside out; the last one is None, the drawing.
    """

    node: GraphNode
    around: list[int | None]
    lines: list[str]
    tip: str
    colour: str
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
    shapes = _stacked(nodes, colour_of)
    lanes, right = _in_lanes(shapes, edges)
    left = min([shape.left for shape in shapes.values()], default=0)
    legend, above = _legend(colour_of, left, right)
    bottom = max([shape.bottom for shape in shapes.values()], default=0)
    lines = []
    for edge, points in zip(edges, wide):
        lane = lanes.get((edge.source, edge.target))
        lines.append({"width": points, **_line(edge, shapes[edge.source], shapes[edge.target], lane)})
    drawn = ENVIRONMENT.get_template("drawing.svg.jinja").render(
        style=Markup(source("drawing.css")), left=left - PAD, top=-above - PAD, across=right - left + 2 * PAD,
        down=above + bottom + 2 * PAD, font=FONT, pad=PAD, step=LINE, arrow=ARROW, rounding=ROUNDING,
        legend=legend, shapes=shapes.values(), lines=lines,
    )  # fmt: skip
    return drawn + "\n"


def _stacked(nodes: Sequence[GraphNode], colour_of: Mapping[str, str]) -> dict[int, _Shape]:
    """Return the shapes by the number of their node, from the top down; frames have no width yet."""
    shapes: dict[int, _Shape] = {}
    frames: list[_Shape] = []
    y = 0.0
    for _, node in nested(nodes):
        if node is None:
            frames.pop().bottom = y - GAP + PAD
            y += PAD
            continue
        title, result = title_of(node), structure_text(node.outputs)
        params = f", {counted(node.num_params)}" if node.num_params else ""
        is_frame = node.kind == "group"
        texts = [title] if is_frame else [title, result + params]
        if node.kind in ("input", "output"):
            texts = [f"{title} {result}"]
        lines = [shortened(one_line(text), WIDEST) for text in texts]
        bottom = y + LINE * len(lines) + PAD
        half = 0 if is_frame else max(map(len, lines)) * LETTER / 2 + PAD
        colour = colour_of.get(kind_of(node), "")
        around = [*(frame.node.index for frame in reversed(frames)), None]
        shape = shapes[node.index] = _Shape(node, around, lines, _tip(node), colour, y, bottom, -half, half)
        if is_frame:
            frames.append(shape)
        y = bottom + (0 if is_frame else GAP)
    return shapes


def _in_lanes(shapes: dict[int, _Shape], edges: Sequence[GraphEdge]) -> tuple[Lanes, float]:
    """Return the lines beside the boxes, and the right side of all; frames are widened to hold what is in them.

    A line runs to the right of everything in the innermost frame around both of its ends.
    """
    boxes = [index for index, shape in shapes.items() if shape.node.kind != "group"]
    following = dict(pairwise(boxes))
    trunks: defaultdict[int | None, defaultdict[int, list[GraphEdge]]] = defaultdict(lambda: defaultdict(list))
    for edge in edges:
        if following.get(edge.source) != edge.target:
            around = shapes[edge.source].around
            trunks[next(frame for frame in shapes[edge.target].around if frame in around)][edge.source].append(edge)
    inside: defaultdict[int | None, list[_Shape]] = defaultdict(list)
    for box in shapes.values():
        inside[box.node.parent].append(box)
    lanes: Lanes = {}
    right = 0.0
    for frame in [*(index for index in reversed(shapes) if index in inside), None]:
        right = max([shape.right for shape in inside[frame]], default=0)
        taken: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        spans = []
        for source_index, trunk in trunks[frame].items():
            ends = [shapes[source_index].bottom - SIDE, *(shapes[edge.target].top + SIDE for edge in trunk)]
            spans.append((min(ends), max(ends), trunk))
        for top, bottom, trunk in sorted(spans, key=lambda span: span[1] - span[0]):
            lane = next(n for n in count(1) if all(bottom < start or stop < top for start, stop in taken[n]))
            taken[lane].append((top, bottom))
            lanes.update({(edge.source, edge.target): right + LANE * lane for edge in trunk})
        right += LANE * len(taken)
        if frame is not None:
            outer = shapes[frame]
            title = 2 * PAD + len(outer.lines[0]) * LETTER  # Left of the middle, where arrows come in.
            outer.left = min(-title, *(shape.left - PAD for shape in inside[frame]))
            outer.right = right + PAD
    return lanes, right


def _line(edge: GraphEdge, source: _Shape, target: _Shape, lane: float | None) -> dict[str, object]:
    """Return an edge: an arrow to the next box with the shape that it carries if no box says it, or one beside."""
    carried, low = carried_text(edge), target.top - ARROW
    line: dict[str, object] = {"tip": f"{carried}, {size_text(edge.nbytes)}"}
    if lane is None:
        label = "" if carried == structure_text(source.node.outputs) else carried
        head = f"0.0,{target.top:.1f} {-ARROW / 2},{low:.1f} {ARROW / 2},{low:.1f}"
        return {**line, "path": f"M0 {source.bottom:.1f}V{low:.1f}", "head": head, "label": label, "label_y": low}
    x, y = target.right, target.top + SIDE
    sides = " ".join(f"{x + ARROW:.1f},{y + side:.1f}" for side in (-ARROW / 2, ARROW / 2))
    path = f"M{source.right:.1f} {source.bottom - SIDE:.1f}H{lane:.1f}V{y:.1f}H{x + ARROW:.1f}"
    return {**line, "path": path, "head": f"{x:.1f},{y:.1f} {sides}"}


def _legend(
    colour_of: Mapping[str, str], left: float, right: float
) -> tuple[list[tuple[float, float, str, str]], float]:
    """Return the colours with their places and names, if there are several, above the drawing, and their height."""
    if len(colour_of) < 2:
        return [], 0
    places: list[tuple[float, float]] = []
    x, y = left, 0.0
    for kind in colour_of:
        across = len(one_line(kind)) * LETTER + 2 * GAP
        if x + across > right and x > left:
            x, y = left, y + LINE
        places.append((x, y))
        x += across
    height = y + LINE + GAP
    return [(x, y - height, kind, colour) for (x, y), (kind, colour) in zip(places, colour_of.items())], height
