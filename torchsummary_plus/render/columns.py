"""The columns that other rooms add to a table: a step's memory and time, a rank's part, arithmetic, connections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache, partial

from ..data.records import FROM_INPUT, Flow, TensorSpec
from ..formats.table import Cell, Value
from ..table.columns import COLUMNS as COLUMNS
from ..table.columns import Column, absent, default_names
from ..table.lines import Layout, Line
from ..table.rows import Report

OUTPUT = -1  # The node that stands for what the model returns; those of its inputs are -2, -3 and so on.


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


def connected_to(line: Line, report: Report) -> Value | Cell:
    """Return the names of the lines that a line reads from outside itself."""
    read = None if line.layout is None else _reads(line.layout).get(line.row.index)
    return absent(line) if read is None else ", ".join(read) or None


@lru_cache(maxsize=1)
def _reads(layout: Layout) -> dict[int, dict[str, None]]:
    """Return what each line of a table reads, by its row; a row that never ran has no entry."""
    flow, rows = layout.report.flow, layout.report.rows
    if flow is None:
        return {}
    lineage: dict[int | None, list[int]] = {None: []}  # Of each row: itself and the rows around it.
    for row in rows:
        lineage[row.index] = [row.index, *lineage[row.parent]]
    called = [index for index in layout.names if rows[index].called]
    groups = {above for index in called for above in lineage[rows[index].parent]}
    read: dict[int, dict[str, None]] = {row.index: {} for row in rows if row.called or row.index in groups}
    inputs = sum(owner == -1 for owner in flow.owners)
    for source, target in edges_between(flow, layout.home, set(layout.names) - groups):
        if target == OUTPUT:
            continue
        outside = lineage.get(source, [])
        given = "input" if inputs == 1 else f"input {OUTPUT - source}"
        for index in lineage[target]:
            if index not in outside:
                read[index][layout.names[source] if source >= 0 else given] = None
    return read


def _memory(name: str, heading: str, about: str, by_default: bool = False) -> Column:
    """Return the column of a field of a row's memory."""

    def figure(line: Line, report: Report) -> Value | Cell:
        nbytes: int | None = getattr(line.memory, name)
        return absent(line) if nbytes is None else nbytes

    return Column(heading, about, figure, "bytes", of_memory=True, by_default=by_default)


def _time(line: Line, report: Report, of_step: bool) -> Cell:
    """Return the time of a line's own kernels, in milliseconds or as a share of the step's in percent."""
    seconds = None if line.memory is None else line.memory.seconds
    if seconds is None:
        return absent(line)
    if not of_step:
        return Cell(1e3 * seconds, f"{1e3 * seconds:.3f}")
    whole = sum(memory.seconds or 0.0 for memory in report.row_memory)
    share = 100 * seconds / whole if whole else 0.0
    return Cell(share, f"{share:.1f}%")


def _local_shapes(line: Line, report: Report) -> Value:
    shards = () if line.memory is None or line.stands_for_others else line.memory.shards
    return ", ".join(map(str, shards)) or None


def _arithmetic(line: Line, report: Report, name: str) -> Value:
    """Return the arithmetic of parameters or multiply-adds; none if other rows are folded in."""
    from .explain import explain_rows  # Imported here: only this column needs it.

    count = line.num_params if name == "parameters" else line.mult_adds
    own = line.row.num_params if name == "parameters" else line.row.own_mult_adds
    step = explain_rows([line.row]).step(name) if count and count == own else None
    return step.expr.text if step is not None and step.expr.value == count else None


COLUMNS.update({
    "params_arithmetic": Column(
        "Param Arithmetic", "the arithmetic behind `num_params` (see [Arithmetic](#arithmetic))",
        partial(_arithmetic, name="parameters"), flat_width=25,
    ),
    "mult_adds_arithmetic": Column(
        "Mult-Add Arithmetic", "the arithmetic behind `mult_adds`", partial(_arithmetic, name="mult_adds"),
        flat_width=25,
    ),
    "connected_to": Column(
        "Connected to", "the rows whose output this row reads, as in Keras", connected_to, flat_width=25
    ),
    "local_params": Column(
        "Local Param #", "this rank's part of the module's own parameters", lambda line, _: line.local_params,
        "elements", of_ranks=True, adds_up=True, by_default=True,
    ),
    "local_shapes": Column(
        "Local Shape",
        "shapes of this rank's parts of the module's own parameters, and the full shapes where they differ",
        _local_shapes, flat_width=25, of_ranks=True, by_default=True,
    ),
    "saved_bytes": _memory("saved_bytes", "Saved", "bytes that the module's call saves for the backward", True),
    "peak_bytes": _memory("peak_bytes", "Live", "live bytes when the call returns", True),
    "grad_bytes": _memory("grad_bytes", "Gradients", "bytes of the gradients of the module's parameters"),
    "optimizer_bytes": _memory(
        "optimizer_bytes", "Optimizer", "bytes of the optimizer state of the module's parameters"
    ),
    "time_ms": Column(
        "Time (ms)", "time of the module's own kernels on the GPU of `memory={'gpu': ...}`, without its children",
        partial(_time, of_step=False), "ms", of_memory=True, adds_up=True,
    ),
    "time_percent": Column(
        "Time %", "the same as a share of the step", partial(_time, of_step=True), "%", of_memory=True, adds_up=True
    ),
})  # fmt: skip


def added_names(report: Report) -> tuple[str, ...]:
    """Return the columns that a report's memory and ranks add to those that are shown by default."""
    names = default_names(report.has_memory, report.is_sharded)
    return tuple(name for name in names if COLUMNS[name].of_memory or COLUMNS[name].of_ranks)
