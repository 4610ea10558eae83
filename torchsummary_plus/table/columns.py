"""A report -> its table, independent of format: the registry of columns, the chosen lines, the totals and the notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, Union

from ..data.arguments import Registered, integer, names_cures
from ..data.errors import InputError, choice_error
from ..data.records import TensorSpec, Unregistered
from ..data.units import brief_text, describe, mebibytes, structure_data, structure_text
from ..formats.table import ALIASES, UNITS_OF_VALUES, Cell, Field, Table, TableRow, Total, Value
from .lines import ALL_ROWS, STYLES, Line, RowView, folded, shown_lines
from .rows import Report

Figure = Callable[[Line, Report], Union[Value, Cell]]
"""(line, its report) -> what a column shows: a value, or a cell whose text says more than its value."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, what it shows, its figure on a line, and the figure's unit.

    ``flat_width`` is the minimum width in torchsummary's table. ``of_memory`` columns need a summary with a memory
    estimate, and their bytes print in the unit of its totals; those ``of_ranks`` need one of one rank. In a column that
    ``adds_up``, a row excludes its children, so the rows add up to the total. A column ``by_default`` is shown, where
    it can be, unless others are chosen. ``has_batch`` is None unless it shows shapes: whether these have a batch axis.
    """

    heading: str
    about: str
    figure: Figure
    unit: str = ""
    flat_width: int = 15
    of_memory: bool = False
    adds_up: bool = False
    has_batch: bool | None = None
    of_ranks: bool = False
    by_default: bool = False

    def cell(self, line: Line, report: Report, zero: str) -> Cell:
        """Return what it shows on a line, such as 1,234 or 0.50; ``zero`` is the style's text for 0."""
        figure = self.figure(line, report)
        if isinstance(figure, Cell):
            return figure
        if figure is None:
            return Cell(None, "--")
        if isinstance(figure, str):
            return Cell(figure, figure)
        if isinstance(figure, int):
            return Cell(figure, f"{figure:,}" if figure else zero)
        return Cell(figure, f"{figure:,.2f}{'%' if self.unit == '%' else ''}")


def absent(line: Line) -> Cell:
    """Return the cell of a row that was never called: "--" for a container, else "N/A"."""
    return Cell(None, "--" if line.row.kind == "container" else "N/A")


def _shapes(what: str) -> Figure:
    """Return the figure of a call's inputs or outputs: shapes."""

    def figure(line: Line, report: Report) -> Cell:
        structure = getattr(line.row, what)
        if not line.row.called:
            return absent(line)
        if isinstance(structure, TensorSpec):
            text = str(shown := structure.shown)
            return Cell(text, text, data=tuple(shown))
        return Cell(structure_text(structure), brief_text(structure), data=structure_data(structure))

    return figure


def _count(name: str) -> Figure:
    """Return the figure of a count of parameters; a lower bound, or unknown, if some have no shape yet."""

    def figure(line: Line, report: Report) -> Value | Cell:
        count: int = getattr(line, name)
        if not line.uninitialised_params:
            return count
        return Cell(None, f">={count:,}" if count else "N/A")

    return figure


def _num_params(line: Line, report: Report) -> Value | Cell:
    row, count, unlisted = line.row, line.num_params, line.unregistered_params
    value = None if line.uninitialised_params else count
    text = f"{count:,}" if count else "" if value is not None or row.repeated else "N/A"
    if value is None and count:
        text = f">={text}"
    shown = " ".join(filter(None, [f"({unlisted:,})" if unlisted else "", text]))
    if shown or not row.repeated:
        return Cell(value, shown) if shown else value
    return Cell(value, "(recursive)" if row.tied is None else f"(tied: {row.tied})" if row.tied else "(tied)")


def _params_percent(line: Line, report: Report) -> Value:
    is_known = line.num_params and not report.uninitialised_params
    return 100 * line.num_params / report.total_params if is_known else None


def _mult_adds(line: Line, report: Report) -> Value | Cell:
    if line.unknown_ops:
        return Cell(line.mult_adds, f">={line.mult_adds:,}")
    ran = line.row.called or line.row.kind == "container" or line.mult_adds
    return line.mult_adds if ran else Cell(None, "N/A")


def _trainable(line: Line, report: Report) -> Value:
    if not line.num_params:
        return None
    if line.trainable_params == line.num_params:
        return "True"
    return "Partial" if line.trainable_params else "False"


def _kernel_size(line: Line, report: Report) -> Value | Cell:
    size = line.row.kernel_size
    return None if size is None else Cell(str(list(size)), str(list(size)), data=size)


def _groups(line: Line, report: Report) -> Value | Cell:
    groups = line.row.groups
    return None if groups is None else Cell(groups, str(groups))


def _output_bytes(line: Line, report: Report) -> Value | Cell:
    nbytes = line.row.output_bytes
    return Cell(nbytes, f"{nbytes:,}") if line.row.called else absent(line)


COLUMNS: dict[str, Column] = {
    "input_size": Column(
        "Input Shape", "shapes of the inputs; axes that scale with an open batch are -1", _shapes("inputs"),
        flat_width=25, has_batch=True,
    ),
    "output_size": Column(
        "Output Shape", "shapes of the outputs, in the same form", _shapes("outputs"), flat_width=25, has_batch=True,
        by_default=True,
    ),
    "num_params": Column(
        "Param #",
        "the module's own parameters, excluding tensors already counted in a row above; in parentheses, those that "
        "`model.parameters()` does not list, which the totals leave out", _num_params, "elements", adds_up=True,
        by_default=True,
    ),
    "params_percent": Column("Param %", "share of all parameters", _params_percent, "%", 10, adds_up=True),
    "active_params": Column(
        "Active Param #",
        "the part of `num_params` that one token uses; for experts, the share that the router chooses",
        _count("active_params"), "elements", adds_up=True,
    ),
    "param_bytes": Column(
        "Param Bytes", "stored bytes of `num_params`; for quantised weights, the packed bytes with their scales",
        _count("param_bytes"), "bytes", adds_up=True,
    ),
    "unregistered_params": Column(
        "Unregistered Param #",
        "parameters in plain lists, dicts or attributes, which `model.parameters()` does not list",
        lambda line, _: line.unregistered_params, "elements", adds_up=True,
    ),
    "kernel_size": Column("Kernel Shape", "`kernel_size` of modules that have one", _kernel_size, has_batch=False),
    "groups": Column("Groups", "`groups` of modules that have them", _groups, "count", 10),
    "mult_adds": Column("Mult-Adds", "multiply-adds of the operators run in this call", _mult_adds, "mult-adds"),
    "flops": Column(
        "FLOPs", "2 x `mult_adds`",
        lambda line, report: _mult_adds(replace(line, mult_adds=2 * line.mult_adds), report), "flops",
    ),
    "trainable": Column(
        "Trainable", "whether all, some or none of the module's parameters are trained", _trainable, flat_width=10
    ),
    "dtype": Column("Dtype", "dtype of the output", lambda line, _: line.row.dtype or absent(line), flat_width=10),
    "output_bytes": Column("Output Bytes", "bytes of the output", _output_bytes, "bytes"),
    "var_name": Column("Variable", "attribute name in the parent module", lambda line, _: line.row.var_name or None),
}  # fmt: skip
"""Every column of a table by its name. Memory, time, ranks and explanations add theirs (``render/columns.py``)."""


def default_names(with_memory: bool, with_ranks: bool) -> tuple[str, ...]:
    """Return the columns that are shown unless others are chosen."""
    names = []
    for name, column in COLUMNS.items():
        if column.by_default and (with_memory or not column.of_memory) and (with_ranks or not column.of_ranks):
            names.append(name)
    return tuple(names)


F = TypeVar("F", bound=Callable[[Line, Report], Value])


@names_cures({})
def register_column(
    name: str,
    heading: str,
    *,
    about: str = "",
    unit: str = "",
    width: int = 15,
    of_memory: bool = False,
    adds_up: bool = False,
) -> Callable[[F], Registered[F]]:
    """Register the decorated function, ``(line, report) -> value``, as a column; None is an empty cell.

    ``line`` has the figures of a line of the table: ``num_params``, ``mult_adds``, ``memory`` (a
    :class:`~torchsummary_plus.data.memory_records.RowMemory`, or None) and ``row`` (a
    :class:`~torchsummary_plus.table.rows.Row`). ``report`` is the summary. ``unit`` is "bytes", "elements",
    "mult-adds", "count", "ratio", "%", "ms", or "" for text. ``width`` is the minimum width in torchsummary's style.
    Columns ``of_memory`` need ``summary(memory=...)``; in one that ``adds_up``, a row excludes its children. The
    returned function has a ``remove()`` method, and its column is removed at the end of a ``with`` block.

    Raises InputError for a name that is not an identifier or is taken, and for an unknown unit.

    >>> from torch import nn
    >>> from torchsummary_plus import summary
    >>> @register_column("reuse", "Uses per Param", unit="ratio")
    ... def reuse(line, report):
    ...     return line.mult_adds / line.num_params if line.num_params else None
    >>> with reuse:
    ...     summary(nn.Conv2d(1, 4, 3, bias=False), (1, 8, 8), verbose=0).to_csv(columns=["reuse"]).split()[-1]
    'Conv2d-1,,0,36.0'
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"column name is {describe(name)}; accepted: an identifier such as 'macs_per_param'")
    if name in COLUMNS:
        raise InputError(f"column {name} already exists: {COLUMNS[name].heading}")
    if unit not in UNITS_OF_VALUES:
        raise choice_error("unit", unit, UNITS_OF_VALUES)

    def register(value: F) -> Registered[F]:
        COLUMNS[name] = Column(heading, about, value, unit, width, of_memory, adds_up)
        return Registered(value, COLUMNS, [name])

    return register


FRAME_COLUMNS = ("input_size", "output_size", "num_params", "mult_adds", "output_bytes", "dtype")
"""The columns of a data frame, unless they are chosen."""


def chosen_names(names: Iterable[str] | None, with_memory: bool = False, with_ranks: bool = False) -> tuple[str, ...]:
    """Return the names of the chosen columns, the defaults for None. Raises :class:`InputError`."""
    if isinstance(names, str):
        names = (names,)
    chosen = []
    for name in default_names(with_memory, with_ranks) if names is None else names:
        name = ALIASES.get(name, name)
        chosen.append(name)
        if name not in COLUMNS:
            raise choice_error("column", name, COLUMNS)
        if COLUMNS[name].of_ranks and not with_ranks:
            raise InputError(
                f"column {name!r} needs a model that is sharded, or the memory of one rank: "
                "summary(..., memory={'world_size': 8, 'build': build}), where build() shards the model"
            )
        if COLUMNS[name].of_memory and not with_memory:
            raise InputError(f'column {name!r} needs a memory estimate: summary(..., memory="train")')
    return tuple(chosen)


def check_layout(style: str, depth: int | None) -> int | None:
    """Return the depth, as Python's integer. Raises :class:`InputError` for an unknown style or depth."""
    if style not in STYLES:
        raise choice_error("style", style, STYLES)
    return None if depth is None else integer("depth", depth, 0, "None for all, or ")


def summary_table(
    report: Report,
    style: str = "torchsummary",
    depth: int | None = None,
    col_names: Iterable[str] | None = None,
    view: RowView = ALL_ROWS,
) -> Table:
    """Return a report's table in a style, with the chosen rows and columns and the totals.

    Raises :class:`InputError` for an unknown column.
    """
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
