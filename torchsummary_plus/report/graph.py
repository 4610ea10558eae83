"""A report -> the nodes and edges of its graph, at a depth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ..data.records import FROM_INPUT, Flow, GraphEdge, GraphNode, Group, Structure, TensorSpec, tensors
from ..table.rows import Report, Row
from .graph_folding import folded

OUTPUT = -1
"""The node that stands for what the model returns; those of its inputs are -2, -3 and so on."""


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
