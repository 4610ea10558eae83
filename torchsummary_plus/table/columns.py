"""The registry of table columns: each has one figure, and one function writes what is not written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar, Union

from ..data.arguments import integer, names_cures
from ..data.errors import InputError, choice_error
from ..data.records import TensorSpec
from ..data.registered import Registered
from ..data.units import brief_text, describe, structure_data, structure_text
from ..formats.table import ALIASES, UNITS_OF_VALUES, Cell, Value
from .lines import STYLES, Line
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


def _flops(line: Line, report: Report) -> Value | Cell:
    return _mult_adds(replace(line, mult_adds=2 * line.mult_adds), report)


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


def _dtype(line: Line, report: Report) -> Value | Cell:
    return line.row.dtype or absent(line)


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
    "flops": Column("FLOPs", "2 x `mult_adds`", _flops, "flops"),
    "trainable": Column(
        "Trainable", "whether all, some or none of the module's parameters are trained", _trainable, flat_width=10
    ),
    "dtype": Column("Dtype", "dtype of the output", _dtype, flat_width=10),
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
        return Registered(value, lambda: COLUMNS.__delitem__(name))

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


def check_view(
    style: str, depth: int | None, col_names: Iterable[str] | None, with_memory: bool = False, with_ranks: bool = False
) -> int | None:
    """Return the depth, as Python's integer. Raises :class:`InputError` for an unknown style, column or depth."""
    deepest = check_layout(style, depth)
    chosen_names(col_names, with_memory, with_ranks)
    return deepest


def check_layout(style: str, depth: int | None) -> int | None:
    """Return the depth, as Python's integer. Raises :class:`InputError` for an unknown style or depth."""
    if style not in STYLES:
        raise choice_error("style", style, STYLES)
    return None if depth is None else integer("depth", depth, 0, "None for all, or ")
