"""A report -> the nodes and edges of its graph, at a depth, with equal neighbours folded into one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..data.records import FROM_INPUT, Flow, GraphEdge, GraphNode, Group, Structure, TensorSpec, tensors
from ..table.rows import Report, Row

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


OUTPUT = -1  # The node that stands for what the model returns; those of its inputs are -2, -3 and so on.


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


def edges_between(flow: Flow, home: Sequence[int], leaves: set[int]) -> dict[tuple[int, int], list[TensorSpec]]:
    """Return the tensors between ``leaves``, inputs and output, by the row that each row is folded into (``home``).

    A tensor that one of them reads several times counts once. Operators that other rows run between their nested calls
    are passed through.
    """
    input_nodes = iter(range(OUTPUT - 1, -len(flow.owners) - 2, -1))
    shown: list[int | None] = []
    for owner in flow.owners:
        if owner < 0:
            shown.append(next(input_nodes) if owner == FROM_INPUT else OUTPUT)
        else:
            shown.append(home[owner] if home[owner] in leaves else None)
    origins: list[dict[int, None]] = [{} if node is None else {node: None} for node in shown]
    edges: defaultdict[tuple[int, int], dict[tuple[int, int, TensorSpec], TensorSpec]] = defaultdict(dict)
    for link in sorted(flow.links, key=lambda link: link.target):
        node = shown[link.target]
        if node is None:
            origins[link.target].update(origins[link.source])
            continue
        for source in origins[link.source]:
            if source != node:
                edges[source, node][link.source, link.result, link.tensor] = link.tensor
    return {ends: list(read.values()) for ends, read in edges.items()}


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
