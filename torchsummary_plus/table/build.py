"""A report -> its table, independent of format: the chosen lines and columns, the totals and the notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..data.records import Unregistered
from ..data.units import mebibytes
from ..formats.table import Cell, Field, Table, TableRow, Total
from .columns import COLUMNS, Column, check_layout, chosen_names
from .lines import ALL_ROWS, RowView, folded, shown_lines
from .rows import Report


def summary_table(
    report: Report,
    style: str = "torchsummary",
    depth: int | None = None,
    col_names: Iterable[str] | None = None,
    view: RowView = ALL_ROWS,
) -> Table:
    """Return a report's table in a style, with the chosen rows and columns and the totals.

    Raises :class:`InputError` for an unknown style, column or depth.
    """
    check_layout(style, depth)
    names = chosen_names(col_names, report.has_memory, report.is_sharded)
    if col_names is None and report.run.kind == "none":
        names = tuple([name for name in names if name != "output_size"])
    nested = style != "torchsummary"
    (lines, note), rows = shown_lines(report, style, depth, view), []
    for line in lines:
        row, cells = line.row, []
        for name in names:
            cell = COLUMNS[name].cell(line, report, "--" if nested else "0")
            if nested and name == "num_params" and row.total_params and not line.num_params:
                cell = cell if line.stands_for_others else replace(cell, inside=f"{row.total_params:,}")
            cells.append(cell)
        rows.append(TableRow(line.label, row.path, row.depth if nested else 0, tuple(cells), type=row.class_name))
    if nested and view.repeats == "fold":
        texts = [[c.text for c, name in zip(r.cells, names) if name != "var_name"] for r in rows]
        places, lines = folded(lines, texts)
        rows = [replace(rows[place], label=line.label) for place, line in zip(places, lines)]
    notes = [note]
    if report.unregistered:
        notes.append(unregistered_note(report.unregistered))
    if report.uninitialised_params:
        notes.append(f"Not counted: {without_shape(report)}")
    notes.append(report.run.note[:1].upper() + report.run.note[1:])
    return Table(
        title=report.rows[0].class_name,
        labels="Layer (type)",
        fields=tuple([column_field(name, COLUMNS[name], report) for name in names]),
        rows=tuple(rows),
        totals=report_totals(report),
        notes=tuple(filter(None, notes)),
        widest=view.width,
    )


def column_field(name: str, column: Column, report: Report) -> Field:
    """Return the field of a column of a report."""
    open_or_size = -1 if report.run.batch_size is None else report.run.batch_size
    batch = None if column.has_batch is None else open_or_size if column.has_batch else 0
    is_scaled = column.of_memory and column.unit == "bytes"  # To the unit of the totals.
    return Field(name, column.heading, column.unit, is_scaled, column.adds_up, width=column.flat_width, batch=batch)


COUNTS = {
    "total_params": "Total params",
    "trainable_params": "Trainable params",
    "non_trainable_params": "Non-trainable params",
    "total_mult_adds": "Total mult-adds",
}
"""The fields of a report that are counts, with their labels."""

SIZES = {
    "input_bytes": "Input size",
    "forward_backward_bytes": "Forward/backward pass size",
    "param_bytes": "Params size",
    "buffer_bytes": "Buffers size",
    "total_bytes": "Estimated Total Size",
}
"""The fields of a report in bytes, with their labels."""

GUESSES = ("forward_backward_bytes", "total_bytes")
"""torchsummary's guesses at a step's memory: unknown unless the whole forward ran, and left out where it is known."""


def report_totals(report: Report) -> tuple[Total, ...]:
    """Return a report's totals in table order: unknown without a pass that ran, or without all shapes."""
    is_static, totals = report.run.kind == "none", []
    unknown: set[str] = set()
    if is_static:
        unknown.update(("input_bytes", "total_mult_adds"))
    if is_static or report.run.is_partial:
        unknown.update(GUESSES)
    if report.uninitialised_params:
        unknown.update(("param_bytes", "total_bytes"))
    if report.uninitialised_buffers:
        unknown.add("buffer_bytes")
    for name, label in COUNTS.items():
        count: int = getattr(report, name)
        text, unit = f"{count:,}", "mult-adds" if name == "total_mult_adds" else "elements"
        if unit == "elements" and report.uninitialised_params:  # A lower bound.
            text = f">={text}" if count else ""
        elif unit == "mult-adds" and report.unknown_ops:
            operators = ", ".join([f"{operator} x {calls:,}" for operator, calls in report.unknown_ops])
            text = f">={text} (not counted: {operators})"
        cell = Cell(None, "N/A") if name in unknown or not text else Cell(count, text)
        totals.append(Total(Field(name, label, unit), cell))
        if name == "non_trainable_params":
            totals += _parts(report)
    for name, label in SIZES.items():
        nbytes: int = getattr(report, name)
        cell = Cell(None, "N/A") if name in unknown else Cell(nbytes, mebibytes(nbytes))
        totals.append(Total(Field(name, label, "bytes", scaled=True), cell))
    return tuple(totals)


def _parts(report: Report) -> Iterator[Total]:
    """Yield the parameters left by pruning, those that a token uses, if there are experts, and each adapter's own."""
    if report.pruned_params is not None:
        left = report.total_params - report.pruned_params
        text = f"{left:,} ({report.pruned_params:,} are masked)"
        yield Total(Field("params_after_pruning", "Params after pruning", "elements"), Cell(left, text))
    if report.experts:
        count = report.active_params
        ways = Counter((group.chosen, group.count) for group in report.experts)
        shares = ", ".join(f"{chosen:,} of {number:,} experts" for chosen, number in ways)
        yield Total(Field("active_params", "Active params", "elements"), Cell(count, f"{count:,} ({shares} per token)"))
    for adapter in report.adapters:
        share = 100 * adapter.trainable_params / report.total_params
        text = f"{adapter.params:,} params, {adapter.trainable_params:,} trained ({share:.2f}% of all)"
        if not adapter.is_active:
            text += ", inactive"
        field = Field(f"adapter_{adapter.name}", f"Adapter {adapter.name}", "elements")
        yield Total(field, Cell(adapter.params, text))


MOST_NAMES = 5
"""Most attributes that a note names."""


def unregistered_note(unregistered: Sequence[Unregistered]) -> str:
    """Return the note that the totals leave out layers which no module registers."""
    params = sum(item.params for item in unregistered)
    names = ", ".join(item.path for item in unregistered[:MOST_NAMES])
    more = f" and {len(unregistered) - MOST_NAMES:,} more" if len(unregistered) > MOST_NAMES else ""
    what = f"{params:,} parameters in {names}" if params else names  # Buffers, or lazy layers.
    return (
        f"Not registered, outside the totals: {what}{more}; .to(), state_dict() and optimizers "
        "miss layers in a plain list, dict or attribute: use nn.ModuleList, nn.ModuleDict or nn.ParameterList"
    )


def without_shape(report: Report) -> str:
    """Return how many parameters have no shape yet, and the cure; "" if all have one."""
    count = report.uninitialised_params
    if not count:
        return ""
    parameters = "1 parameter" if count == 1 else f"{count:,} parameters"
    cure = "pass input_size= or input_data=" if report.run.kind == "none" else "the forward does not use them"
    return f"{parameters} of lazy modules without a shape; {cure}"
