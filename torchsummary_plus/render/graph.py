"""A report -> the nodes and edges of its graph, at a depth, with equal neighbours folded into one, and its classes.

A graph -> its tables, Graphviz DOT, SVG and Mermaid. Graphviz draws the SVG where it is installed, else it is a column
of boxes in the order of the calls.
"""

from __future__ import annotations

import html
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count, groupby, pairwise
from math import sqrt

from markupsafe import Markup

from ..data.errors import InputError, UnsupportedError, choice_error, need_extra
from ..data.records import FROM_INPUT, GraphEdge, GraphNode, Group, Structure, TensorSpec, tensors
from ..data.units import one_line, size_text, structure_text
from ..formats.table import WIDEST, Field, Table, TableRow, cells, shortened
from ..table.columns import check_layout
from ..table.rows import Report, Row
from .columns import OUTPUT, edges_between
from .html import asset, rendered
from .plots import CLASSES

Edges = Mapping[tuple[int, int], list[TensorSpec]]


@dataclass(eq=False)
class _Tree:
    """A node with those inside it; ``start`` and ``stop`` are the places of its leaves among all leaves."""

    node: GraphNode
    inside: list[_Tree] = field(default_factory=list)
    alike: int = -1
    start: int = 0
    stop: int = 0


Places = defaultdict[int, list[int]]  # By the place of a leaf, those of the leaves that it reads, or feeds.
Reads = set[tuple[int, int]]  # The places of what is read and of what reads it.

Pattern = tuple[Reads, Reads, Reads]
"""What a member of a run reads from the member before it, from nodes outside the run, and from itself."""


def folded(nodes: Sequence[GraphNode], edges: Edges) -> tuple[list[GraphNode], dict[tuple[int, int], list[TensorSpec]]]:
    """Return nodes and edges with every run of equal neighbours as its first member.

    The members of a run look the same, down to their last node, and read the same: each from the one before it (or
    from all before it, as the sum along a residual path does), or from the same nodes outside. Only the last may feed
    what follows, unless all feed the same.
    """
    trees = _trees(nodes)
    leaves = [tree for tree in trees.values() if not tree.inside]
    place = {tree.node.index: tree.start for tree in leaves}
    read: Places = defaultdict(list)
    fed: Places = defaultdict(list)
    for source, target in edges:
        read[place[target]].append(place[source])
        fed[place[source]].append(place[target])
    drawn: dict[int, GraphNode] = {}
    runs: list[tuple[int, int, int]] = []  # The first leaf of each run, its length in leaves, and those of a member.
    stack = [(tree, 1, "") for tree in trees.values() if tree.node.parent is None]
    while stack:  # From the outside in: of a run, only the first member.
        tree, repeats, until = stack.pop()
        drawn[tree.node.index] = replace(tree.node, repeats=repeats, until=until)
        position = 0
        while position < len(tree.inside):
            count = _run(tree.inside[position:], read, fed)
            first, last = tree.inside[position], tree.inside[position + count - 1]
            stack.append((first, count, last.node.name if count > 1 else ""))
            if count > 1:
                runs.append((first.start, last.stop - first.start, first.stop - first.start))
            position += count
    merged: defaultdict[tuple[int, int], list[TensorSpec]] = defaultdict(list)
    for (source, target), specs in edges.items():
        a, b, is_drawn = place[source], place[target], True
        for start, length, size in runs:
            a_inside, b_inside = (start <= leaf < start + length for leaf in (a, b))
            is_drawn = is_drawn and not (a_inside and b_inside and max(a, b) >= start + size)  # Between members.
            a = start + (a - start) % size if a_inside else a
            b = start + (b - start) % size if b_inside else b
        ends = leaves[a].node.index, leaves[b].node.index
        if is_drawn:
            merged[ends] += [spec for spec in specs if spec not in merged[ends] or ends == (source, target)]
    return [drawn[node.index] for node in nodes if node.index in drawn], dict(merged)


def _trees(nodes: Sequence[GraphNode]) -> dict[int, _Tree]:
    trees = {node.index: _Tree(node) for node in nodes}
    for tree in trees.values():
        if tree.node.parent is not None:
            trees[tree.node.parent].inside.append(tree)
    leaves = 0
    for tree in trees.values():
        tree.start = leaves
        leaves += not tree.inside
    seen: dict[Hashable, int] = {}
    for tree in reversed(trees.values()):
        tree.stop = tree.inside[-1].stop if tree.inside else tree.start + 1
        node = tree.node
        inside = tuple((branch.node.name, branch.alike) for branch in tree.inside)
        look = (node.kind, node.class_name, node.num_params, node.inputs, node.outputs, node.shared, inside)
        tree.alike = seen.setdefault(look, len(seen))
    return trees


def _run(trees: Sequence[_Tree], read: Places, fed: Places) -> int:
    """Return how many trees, from the first one, are one run."""
    first, count = trees[0], 1
    own, before = _pattern(first, first, read), None
    while own and count < len(trees) and trees[count].alike == first.alike:
        other = _pattern(first, trees[count], read)
        if other is None or (before or other) != other or not other[1] <= own[1] or other[2] != own[2]:
            break
        before = other
        count += 1
    while count > 1 and not _feed_alike(trees[:count], fed):
        count -= 1
    return count


def _pattern(first: _Tree, tree: _Tree, read: Places) -> Pattern | None:
    """Return what a member of a run reads; None if it reads from earlier ones than the last, but not the same."""
    size = first.stop - first.start
    before: list[Reads] = [set() for _ in range((tree.start - first.start) // size)]
    outside, inside = Reads(), Reads()
    for place in range(tree.start, tree.stop):
        own = place - tree.start
        for source in read[place]:
            if source >= tree.stop:
                return None
            if source >= tree.start:
                inside.add((source - tree.start, own))
            elif source >= first.start:
                member, at = divmod(source - first.start, size)
                before[member].add((at, own))
            else:
                outside.add((source, own))
    if any(before[:-1]) and any(reads != before[-1] for reads in before):
        return None
    return before[-1] if before else Reads(), outside, inside


def _feed_alike(members: Sequence[_Tree], fed: Places) -> bool:
    """Whether all members but the last feed the same nodes after the run, and the last at least those."""
    stop = members[-1].stop
    every = [
        {(p - member.start, target) for p in range(member.start, member.stop) for target in fed[p] if target >= stop}
        for member in members
    ]
    return all(feeds == every[0] for feeds in every[:-1]) and every[0] <= every[-1]


def graph_of(report: Report, depth: int | None = None, fold: bool = True) -> tuple[list[GraphNode], list[GraphEdge]]:
    """Return the nodes, groups before what is inside them, and the edges between calls; ``fold`` folds repeats."""
    shown, home = _shown(report, depth)
    groups = {row.parent for row in shown}
    leaves = {row.index for row in shown} - groups
    edges = edges_between(report.flow, home, leaves) if report.flow is not None else {}
    nodes = [*_inputs(report), *_row_nodes(report, shown, groups)]
    results = [spec for (_, target), specs in edges.items() if target == OUTPUT for spec in specs]
    if results:
        shape: Structure = results[0] if len(results) == 1 else Group(tuple(results))
        nbytes = sum(spec.nbytes for spec in results)
        nodes.append(GraphNode(OUTPUT, None, "output", "", "", "", outputs=shape, output_bytes=nbytes))
    if fold:
        nodes, edges = folded(nodes, edges)
    return nodes, [GraphEdge(source, target, tuple(specs)) for (source, target), specs in edges.items()]


def _shown(report: Report, depth: int | None) -> tuple[list[Row], list[int]]:
    """Return the rows with a node or group, and for each row of the report the one that stands for it."""
    live = {row.index for row in report.rows if row.called}
    for row in reversed(report.rows):
        if row.index in live and row.parent is not None:
            live.add(row.parent)
    shown = [row for row in report.rows if row.index in live and (depth is None or row.depth <= depth)]
    shown_rows = {row.index for row in shown}
    home: list[int] = []
    for row in report.rows:
        home.append(row.index if row.index in shown_rows or row.parent is None else home[row.parent])
    return shown, home


def _inputs(report: Report) -> list[GraphNode]:
    inputs: list[tuple[str, TensorSpec | None]] = [*_named(report.inputs)]
    count = report.flow.owners.count(FROM_INPUT) if report.flow is not None else 0
    nodes = []
    for number, (name, spec) in enumerate(inputs if len(inputs) == count else [("", None)] * count):
        label = name if name or count == 1 else str(number + 1)
        size = 0 if spec is None else spec.nbytes
        nodes.append(GraphNode(OUTPUT - 1 - number, None, "input", "", label, "", outputs=spec, output_bytes=size))
    return nodes


def _named(structure: Structure, name: str = "") -> list[tuple[str, TensorSpec]]:
    """Return the tensors of a structure with the names they have in it."""
    if not isinstance(structure, Group):
        return [] if structure is None else [(name, structure)]
    names = structure.names or [""] * len(structure.items)
    return [spec for inner, item in zip(names, structure.items) for spec in _named(item, inner or name)]


def _row_nodes(report: Report, shown: Sequence[Row], groups: set[int | None]) -> list[GraphNode]:
    calls = Counter(row.path for row in report.rows if row.called and row.kind != "function")
    seen: Counter[str] = Counter()
    nodes = []
    for row in shown:
        is_module = row.kind != "function"
        if is_module and row.called:
            seen[row.path] += 1
        kind = "group" if row.index in groups else "module" if is_module else "function"
        nbytes = sum(spec.nbytes for spec in tensors(row.outputs))
        call, of = (max(1, seen[row.path]), max(1, calls[row.path])) if is_module else (1, 1)
        nodes.append(
            GraphNode(
                row.index, row.parent, kind, row.path, row.var_name, row.class_name, row.inputs, row.outputs,
                row.total_params, row.mult_adds, nbytes, call=call, calls=of,
                shared=row.repeated or seen[row.path] > 1,
            )
        )  # fmt: skip
    return nodes


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


NODE_FIELDS = (
    Field("kind", "Kind"), Field("connected_to", "Connected to"), Field("output_size", "Output Shape"),
    Field("num_params", "Param #", "elements"), Field("mult_adds", "Mult-Adds", "mult-adds"),
    Field("output_bytes", "Output Bytes", "bytes"), Field("repeats", "Repeats", "count"),
)  # fmt: skip

EDGE_FIELDS = (Field("target", "To"), Field("tensors", "Shapes"), Field("nbytes", "Bytes", "bytes"))
DEFAULT_FIELDS = ("kind", "connected_to", "output_size", "num_params", "repeats")


def graph_tables(
    name: str, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], columns: Iterable[str] | None = None
) -> tuple[Table, Table]:
    """Return the table of the nodes and that of the edges. Raises :class:`InputError` for an unknown column."""
    known = {field.name: field for field in NODE_FIELDS}
    names = DEFAULT_FIELDS if columns is None else ((columns,) if isinstance(columns, str) else tuple(columns))
    for column in names:
        if column not in known:
            raise choice_error("column", column, known)
    by_index = {node.index: node for node in nodes}
    read = defaultdict(list)
    for edge in edges:
        read[edge.target].append(called(by_index[edge.source]))
    rows, read_rows = [], []
    for level, node in nested(nodes):
        if node is not None:
            values = {"connected_to": ", ".join(read[node.index]) or None, "output_size": structure_text(node.outputs)}
            own = tuple(known[n].cell(values[n] if n in values else getattr(node, n), "--") for n in names)
            rows.append(TableRow(title_of(node), node.path, level, own))
    for edge in edges:
        source = by_index[edge.source]
        own = cells(EDGE_FIELDS, (called(by_index[edge.target]), carried_text(edge), edge.nbytes))
        read_rows.append(TableRow(called(source), source.path, 0, own))
    first = Table(name, "Node", tuple(known[column] for column in names), tuple(rows))
    return first, Table("Edges", "From", EDGE_FIELDS, tuple(read_rows))


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
    styled = f"{head}{end}{asset('drawing.css')}\n{body}"
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
    lines = []
    for edge, points in zip(edges, wide):
        lane = lanes.get((edge.source, edge.target))
        lines.append({"width": points, **_line(edge, shapes[edge.source], shapes[edge.target], lane)})
    drawn = rendered(
        "drawing.svg.jinja", style=Markup(asset("drawing.css")), left=left - PAD, top=-above - PAD,
        across=right - left + 2 * PAD, down=above + bottom + 2 * PAD, font=FONT, pad=PAD, step=LINE, arrow=ARROW,
        rounding=ROUNDING, legend=legend, shapes=shapes.values(), lines=lines, tip=_tip, kind_of=kind_of,
        colours=colour_of,
    )  # fmt: skip
    return drawn + "\n"


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
        title, result, is_frame = title_of(node), structure_text(node.outputs), node.kind == "group"
        params = f", {counted(node.num_params)}" if node.num_params else ""
        ends = [f"{title} {result}"] if node.kind in ("input", "output") else [title, result + params]
        lines = [shortened(one_line(text), WIDEST) for text in ([title] if is_frame else ends)]
        bottom = y + LINE * len(lines) + PAD
        half = 0 if is_frame else max(map(len, lines)) * LETTER / 2 + PAD
        around = [*(frame.node.index for frame in reversed(frames)), None]
        shape = shapes[node.index] = _Shape(node, around, lines, y, bottom, -half, half)
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


def graph_lines(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> list[str]:
    """Return the lines of a flowchart, with boxes coloured by kind if there are several kinds.

    An edge shows the shape it carries if the node it comes from does not. Functions, inputs and outputs are rounded.
    """
    lines = ["flowchart TB"]
    of_kind = colours(nodes)
    kinds = {kind: number for number, kind in enumerate(of_kind)} if len(of_kind) > 1 else {}
    for level, node in nested(nodes):
        pad = "    " * (level + 1)
        if node is None:
            lines.append(f"{pad}end")
            continue
        title, shape = safe(title_of(node)), safe(structure_text(node.outputs))
        if node.kind == "group":
            lines += [f'{pad}subgraph s{node.index}["{title}"]', f"{pad}    direction TB"]
            continue
        text = "<br/>".join([title, shape, *([counted(node.num_params)] if node.num_params else [])])
        if node.kind in ("input", "output"):
            text = f"{title} {shape}"
        box = f'["{text}"]' if node.kind == "module" else f'(["{text}"])'
        number = kinds.get(kind_of(node))
        lines.append(f"{pad}{_name(node)}{box}{'' if number is None else f':::kind{number}'}")
    shown = {node.index: node for node in nodes}
    for edge in edges:
        source, carried = shown[edge.source], carried_text(edge)
        label = "" if carried == structure_text(source.outputs) else f'|"{safe(carried)}"|'
        lines.append(f"    {_name(source)} -->{label} {_name(shown[edge.target])}")
    return [*lines, *(f"    classDef kind{number} fill:{of_kind[kind]}{TINT}" for kind, number in kinds.items())]


def _name(node: GraphNode) -> str:
    if node.kind == "input":
        return "given" if node.index == -2 else f"given{-node.index - 1}"
    return "returned" if node.kind == "output" else f"n{node.index}"


WORDLESS = re.compile(r"[A-Z][A-Za-z0-9]{2,}")
"""Names that cannot clash with Mermaid keywords, which are lowercase or short, like ``TB``."""


@dataclass(eq=False)
class _Module:
    """A module, by path: its first row and its submodules; those of one class with the same submodules share a box."""

    row: Row
    inside: list[_Module] = field(default_factory=list)
    box: int = -1

    def is_lazy(self) -> bool:
        """Whether parameters in it have no shape yet."""
        return self.row.uninitialised_params > 0 or any(module.is_lazy() for module in self.inside)


def class_lines(report: Report, depth: int) -> list[str]:
    """Return the lines of a class diagram of the modules down to ``depth``, with a box per distinct module."""
    boxes: defaultdict[int, list[_Module]] = defaultdict(list)
    for module in _modules(report, depth):
        boxes[module.box].append(module)
    labels, names = dict[int, str](), dict[int, str]()
    seen: Counter[str] = Counter()
    ids = count(1)
    for box, (first, *_) in boxes.items():
        label = first.row.class_name
        seen[label] += 1
        labels[box] = f"{label} ({seen[label]})" if seen[label] > 1 else label
        names[box] = labels[box] if WORDLESS.fullmatch(labels[box]) else f"Class_{next(ids)}"
    lines = ["classDiagram"]
    for box, modules in boxes.items():
        label = "" if names[box] == labels[box] else f'["{safe(labels[box])}"]'
        members = (f"        {line}" for line in _members(modules, labels))
        lines += [f"    class {names[box]}{label} {{", *members, "    }"]
    for box, (first, *_) in boxes.items():
        parts = Counter(names[module.box] for module in first.inside)
        lines += [f'    {names[box]} *-- "{number}" {part}' for part, number in parts.items()]
    return lines


def _modules(report: Report, depth: int) -> Iterable[_Module]:
    """Return the modules, each after its parent, with the numbers of their boxes."""
    modules: dict[str, _Module] = {}
    for row in sorted(report.rows, key=lambda row: row.path.count(".")):
        level = row.path.count(".") + 1 if row.path else 0
        if row.kind == "function" or row.path in modules or level > depth:
            continue
        above = row.path.rpartition(".")[0]
        while above not in modules and above:
            above = above.rpartition(".")[0]
        modules[row.path] = _Module(row)
        if row.path:
            modules[above].inside.append(modules[row.path])
    known: dict[object, int] = {}
    for module in reversed(modules.values()):
        inside = tuple((submodule.row.var_name, submodule.box) for submodule in module.inside)
        module.box = known.setdefault((module.row.class_name, inside), len(known))
    return modules.values()


def _members(modules: Sequence[_Module], labels: Mapping[int, str]) -> Iterator[str]:
    """Yield the text of a box: number of modules, parameters, submodules, and input and output shapes."""
    is_lazy = any(module.is_lazy() for module in modules)
    params = "unknown params" if is_lazy else counted(sum(module.row.total_params for module in modules))
    yield (f"{len(modules):,} modules, " if len(modules) > 1 else "") + params

    def run(member: tuple[int, _Module]) -> object:
        """Return the same for consecutively numbered modules of one box."""
        place, module = member
        name = module.row.var_name
        return (module.box, int(name) - place) if name.isdecimal() else place

    for _, members in groupby(enumerate(modules[0].inside), run):
        places, inside = zip(*members)
        first, last = inside[0], inside[-1]
        name = first.row.var_name + (f" to {last.row.var_name}" if last is not first else "")
        each = {module.inside[place].row.total_params for module in modules for place in places}
        is_shown = len(each) == 1 and each != {0} and not first.is_lazy()
        words = f", {counted(each.pop())}{' each' if last is not first else ''}" if is_shown else ""
        yield safe(f"{labels[first.box]} {name}") + words
    calls = {(structure_text(m.row.inputs), structure_text(m.row.outputs)) for m in modules if m.row.called}
    if len(calls) == 1:
        inputs, outputs = calls.pop()
        yield f"forward({safe(inputs)}) {safe(outputs)}"


SPECIAL = re.compile(r"[^A-Za-z0-9 .,:\[\]/+_-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+]")
"""Characters special to Mermaid, HTML or Markdown (which Mermaid interprets in labels)."""


def safe(text: str) -> str:
    """Escape a name for any label: special characters become character codes.

    >>> safe("conv_1 [2, 3]"), safe('end"<b>'), safe("_fc_")
    ('conv_1 [2, 3]', 'end#34;#60;b#62;', '#95;fc#95;')
    """
    return SPECIAL.sub(lambda match: f"#{ord(match[0])};", one_line(text))


KINDS = ("class", "flow")  # Of Mermaid diagrams of a summary.

EDGES, CHARACTERS = 500, 50_000
"""Mermaid's default limits (``maxEdges`` and ``maxTextSize``), which apply on GitHub too."""


def mermaid_text(report: Report, kind: str, depth: int | None) -> str:
    """Return a diagram down to ``depth``; None is the deepest within Mermaid's limits. Raises :class:`InputError`."""
    if kind not in KINDS:
        raise choice_error("kind", kind, KINDS)
    check_layout("tree", depth)
    if kind == "flow" and report.run.kind == "none":
        raise InputError("nothing ran, so there is no flow of calls; pass summary input_size= or input_data=")
    deepest = max(row.depth for row in report.rows)
    for level in range(deepest, -1, -1) if depth is None else [depth]:
        lines = class_lines(report, level) if kind == "class" else graph_lines(*graph_of(report, level))
        if sum("-- " in line or "-->" in line for line in lines) <= EDGES and len("\n".join(lines)) < CHARACTERS:
            break
    return "\n".join([*lines, ""])
