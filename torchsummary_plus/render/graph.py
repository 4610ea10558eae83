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


Pattern = tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]
"""What a member reads: (place in the member before, own place) and (node outside, own place)."""


def folded(nodes: Sequence[GraphNode], edges: Edges) -> tuple[list[GraphNode], dict[tuple[int, int], list[TensorSpec]]]:
    """Return nodes and edges with every run of equal neighbours as its first member.

    The members of a run look the same, down to their last node, and read the same: each from the one before it (or
    from all before it, as the sum along a residual path does), or from the same nodes outside. Only the last may feed
    what follows, unless all feed the same.
    """
    trees = _trees(nodes)
    fold = _Fold(trees, edges)
    for tree in [tree for tree in trees.values() if tree.node.parent is None]:
        fold.visit(tree)
    drawn_nodes = [fold.drawn[node.index] for node in nodes if node.index in fold.drawn]
    merged: defaultdict[tuple[int, int], list[TensorSpec]] = defaultdict(list)
    for (source, target), specs in edges.items():
        ends = fold.drawn_ends(source, target)
        if ends is not None:
            merged[ends] += [spec for spec in specs if spec not in merged[ends] or ends == (source, target)]
    return drawn_nodes, dict(merged)


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


class _Fold:
    """Which node stands for which others, worked out from the outside in."""

    def __init__(self, trees: Mapping[int, _Tree], edges: Edges) -> None:
        leaves = [tree for tree in trees.values() if not tree.inside]
        self.place = {tree.node.index: tree.start for tree in leaves}
        self.node_at = [tree.node.index for tree in leaves]
        self.sources: defaultdict[int, list[int]] = defaultdict(list)
        self.targets: defaultdict[int, list[int]] = defaultdict(list)
        for source, target in edges:
            self.sources[self.place[target]].append(self.place[source])
            self.targets[self.place[source]].append(self.place[target])
        self.drawn: dict[int, GraphNode] = {}
        self.runs: list[tuple[int, int, int]] = []
        """The first leaf of a run, its length in leaves, and the leaves of a member."""

    def visit(self, top: _Tree) -> None:
        stack = [(top, 1, "")]
        while stack:
            tree, repeats, until = stack.pop()
            self.drawn[tree.node.index] = replace(tree.node, repeats=repeats, until=until)
            position = 0
            while position < len(tree.inside):
                count = self._run(tree.inside, position)
                members = tree.inside[position : position + count]
                stack.append((members[0], count, members[-1].node.name if count > 1 else ""))
                if count > 1:
                    first = members[0]
                    self.runs.append((first.start, members[-1].stop - first.start, first.stop - first.start))
                position += count

    def _run(self, trees: Sequence[_Tree], position: int) -> int:
        """Return how many trees from ``position`` are one run."""
        first = trees[position]
        end = position + 1
        pattern: Pattern | None = None
        while end < len(trees) and trees[end].alike == first.alike:
            read = self._pattern(trees[position : end + 1])
            if read is None or (pattern is not None and read != pattern):
                break
            if pattern is None and not (read[1] <= self._outside(first, first.start)):
                break
            if self._within(trees[end]) != self._within(first):
                break
            pattern = read
            end += 1
        while end - position > 1 and not self._feeds_alike(trees[position:end]):
            end -= 1
        return end - position

    def _pattern(self, members: Sequence[_Tree]) -> Pattern | None:
        """Return what the last member reads from the one before it and from nodes outside.

        None if it reads from earlier ones, unless it reads the same from each as from the one before it.
        """
        *earlier, tree = members
        start = members[0].start
        size = tree.stop - tree.start
        read: list[set[tuple[int, int]]] = [set() for _ in earlier]
        for place in range(tree.start, tree.stop):
            for source in self.sources[place]:
                if start <= source < tree.start:
                    member, own = divmod(source - start, size)
                    read[member].add((own, place - tree.start))
                elif source >= tree.stop:
                    return None
        if any(read[:-1]) and any(reads != read[-1] for reads in read):
            return None
        return frozenset(read[-1]), self._outside(tree, start)

    def _within(self, tree: _Tree) -> set[tuple[int, int]]:
        """Return what its leaves read from one another, as places in it."""
        return {
            (source - tree.start, place - tree.start)
            for place in range(tree.start, tree.stop)
            for source in self.sources[place]
            if tree.start <= source < tree.stop
        }

    def _outside(self, tree: _Tree, start: int) -> frozenset[tuple[int, int]]:
        places = range(tree.start, tree.stop)
        return frozenset((s, p - tree.start) for p in places for s in self.sources[p] if s < start)

    def _feeds_alike(self, members: Sequence[_Tree]) -> bool:
        """Whether all members but the last feed the same nodes after the run, and the last at least those."""
        stop = members[-1].stop
        fed = [
            {(p - member.start, t) for p in range(member.start, member.stop) for t in self.targets[p] if t >= stop}
            for member in members
        ]
        return all(reads == fed[0] for reads in fed[:-1]) and fed[0] <= fed[-1]

    def drawn_ends(self, source: int, target: int) -> tuple[int, int] | None:
        """Return the nodes between which an edge is drawn; None if it leads between members of a run."""
        a, b = self.place[source], self.place[target]
        for first, length, size in self.runs:
            in_run = [first <= place < first + length for place in (a, b)]
            if all(in_run) and (a >= first + size or b >= first + size):
                return None
            if in_run[0]:
                a = first + (a - first) % size
            if in_run[1]:
                b = first + (b - first) % size
        return self.node_at[a], self.node_at[b]


OUTPUT = -1  # The node that stands for what the model returns; those of its inputs are -2, -3 and so on.


def graph_of(report: Report, depth: int | None = None, fold: bool = True) -> tuple[list[GraphNode], list[GraphEdge]]:
    """Return the nodes, groups before what is inside them, and the edges between calls down to ``depth``.

    With ``fold``, equal neighbours that feed one another, or that read the same, are one node with a number.
    """
    shown, home = _shown(report, depth)
    groups = {row.parent for row in shown}
    leaves = {row.index for row in shown} - groups
    edges = edges_between(report.flow, home, leaves) if report.flow is not None else {}
    nodes = [*_inputs(report), *_row_nodes(report, shown, groups), *_outputs(edges)]
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
    count = sum(owner == FROM_INPUT for owner in report.flow.owners) if report.flow is not None else 0
    if len(inputs) != count:
        inputs = [("", None)] * count
    nodes = []
    for number, (name, spec) in enumerate(inputs):
        label = name if name or len(inputs) == 1 else str(number + 1)
        size = 0 if spec is None else spec.nbytes
        nodes.append(GraphNode(OUTPUT - 1 - number, None, "input", "", label, "", outputs=spec, output_bytes=size))
    return nodes


def _named(structure: Structure, name: str = "") -> list[tuple[str, TensorSpec]]:
    """Return the tensors of a structure with the names they have in it."""
    if not isinstance(structure, Group):
        return [] if structure is None else [(name, structure)]
    names = structure.names or [""] * len(structure.items)
    return [spec for inner, item in zip(names, structure.items) for spec in _named(item, inner or name)]


def _outputs(edges: Mapping[tuple[int, int], list[TensorSpec]]) -> list[GraphNode]:
    results = [spec for (_, target), specs in edges.items() if target == OUTPUT for spec in specs]
    shape: Structure = results[0] if len(results) == 1 else Group(tuple(results))
    nbytes = sum(spec.nbytes for spec in results)
    return [GraphNode(OUTPUT, None, "output", "", "", "", outputs=shape, output_bytes=nbytes)] if results else []


def _row_nodes(report: Report, shown: Sequence[Row], groups: set[int | None]) -> list[GraphNode]:
    calls = Counter(row.path for row in report.rows if row.called and row.kind != "function")
    seen: Counter[str] = Counter()
    nodes = []
    for row in shown:
        is_module = row.kind != "function"
        if is_module and row.called:
            seen[row.path] += 1
        nodes.append(
            GraphNode(
                index=row.index,
                parent=row.parent,
                kind="group" if row.index in groups else ("module" if is_module else "function"),
                path=row.path,
                name=row.var_name,
                class_name=row.class_name,
                inputs=row.inputs,
                outputs=row.outputs,
                num_params=row.total_params,
                mult_adds=row.mult_adds,
                output_bytes=sum(spec.nbytes for spec in tensors(row.outputs)),
                call=max(1, seen[row.path]) if is_module else 1,
                calls=max(1, calls[row.path]) if is_module else 1,
                shared=row.repeated or seen[row.path] > 1,
            )
        )
    return nodes
