"""The registry of table columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from ..data.arguments import names_cures
from ..data.errors import InputError, choice_error
from ..data.integers import integer
from ..data.registered import Registered
from ..data.units import brief_text, describe, structure_data, structure_text
from ..report.report import Report
from .lines import STYLES, Line
from .table import UNITS_OF_VALUES, Value

CellText = Callable[[Line, Report, str], str]
"""(line, its report, the style's text for zero) -> text of the cell."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, what it shows, the text and the value of its cells, and the value's unit.

    ``flat_width`` is the minimum width in torchsummary's table. ``of_memory`` columns need a summary with a memory
    estimate, and their bytes print in the unit of its totals. In a column that ``adds_up``, a row excludes its
    children, so the rows add up to the total.
    """

    heading: str
    about: str
    cell: CellText
    value: Callable[[Line, Report], Value]
    unit: str = ""
    flat_width: int = 15
    of_memory: bool = False
    adds_up: bool = False
    has_batch: bool = False
    """Whether its shapes have a batch axis."""
    of_ranks: bool = False
    """Whether it needs a memory estimate of one rank."""
    data: Callable[[Line], object] | None = None
    """The cell's value in a data frame, if it is not a plain one."""

    @property
    def is_scaled(self) -> bool:
        """Whether its bytes print in the unit of the totals."""
        return self.of_memory and self.unit == "bytes"


def _input_size(line: Line, report: Report, zero: str) -> str:
    return brief_text(line.row.inputs) if line.row.called else _absent(line)


def _output_size(line: Line, report: Report, zero: str) -> str:
    return brief_text(line.row.outputs) if line.row.called else _absent(line)


def _absent(line: Line) -> str:
    """Return the text for a row that was never called: "--" for a container, else "N/A"."""
    return "--" if line.row.kind == "container" else "N/A"


def _of_parameters(name: str) -> CellText:
    """Return the cell function of a count; a lower bound, or unknown, if parameters have no shape yet."""

    def cell(line: Line, report: Report, zero: str) -> str:
        count = getattr(line, name)
        if line.uninitialised_params:
            return f">={count:,}" if count else "N/A"
        return f"{count:,}" if count else zero

    return cell


def _known(name: str) -> Callable[[Line, Report], Value]:
    """Return the value function of a count; None if parameters have no shape yet."""

    def value(line: Line, report: Report) -> Value:
        count: int = getattr(line, name)
        return None if line.uninitialised_params else count

    return value


_counted = _of_parameters("num_params")


def _num_params(line: Line, report: Report, zero: str) -> str:
    counts = [f"({line.unregistered_params:,})"] if line.unregistered_params else []
    own = "" if line.row.repeated and not line.num_params else _counted(line, report, "")
    tied = "(recursive)" if line.row.tied is None else f"(tied: {line.row.tied})" if line.row.tied else "(tied)"
    return " ".join([*counts, *filter(None, [own])]) or (tied if line.row.repeated else zero)


def _params_percent(line: Line, report: Report, zero: str) -> str:
    share = _share_of_params(line, report)
    return "--" if share is None else f"{share:.2f}%"


def _unregistered_params(line: Line, report: Report, zero: str) -> str:
    return f"{line.unregistered_params:,}" if line.unregistered_params else zero


def _mult_adds(line: Line, report: Report, zero: str) -> str:
    if line.unknown_ops:
        return f">={line.mult_adds:,}"
    if not line.row.called and line.row.kind != "container" and not line.mult_adds:
        return "N/A"
    return f"{line.mult_adds:,}" if line.mult_adds else zero


def _flops(line: Line, report: Report, zero: str) -> str:
    return _mult_adds(_doubled(line), report, zero)


def _known_flops(line: Line, report: Report) -> Value:
    return _known_mult_adds(_doubled(line), report)


def _doubled(line: Line) -> Line:
    return replace(line, mult_adds=2 * line.mult_adds)


def _trainable(line: Line, report: Report, zero: str) -> str:
    if not line.num_params:
        return "--"
    if line.trainable_params == line.num_params:
        return "True"
    return "Partial" if line.trainable_params else "False"


def _kernel_size(line: Line, report: Report, zero: str) -> str:
    return "--" if line.row.kernel_size is None else str(list(line.row.kernel_size))


def _groups(line: Line, report: Report, zero: str) -> str:
    return "--" if line.row.groups is None else str(line.row.groups)


def _dtype(line: Line, report: Report, zero: str) -> str:
    return line.row.dtype or _absent(line)


def _output_bytes(line: Line, report: Report, zero: str) -> str:
    return f"{line.row.output_bytes:,}" if line.row.called else _absent(line)


def _var_name(line: Line, report: Report, zero: str) -> str:
    return line.row.var_name or "--"


def _connected_to(line: Line, report: Report, zero: str) -> str:
    read = line.connections.of(line.row) if line.connections is not None else None
    return _absent(line) if read is None else ", ".join(read) or "--"


def _memory_cell(name: str) -> CellText:
    """Return the cell function of a field of a row's memory."""

    def cell(line: Line, report: Report, zero: str) -> str:
        nbytes = getattr(line.memory, name)
        if nbytes is None:
            return _absent(line)
        return f"{nbytes:,}" if nbytes else zero

    return cell


def _local_params(line: Line, report: Report, zero: str) -> str:
    return f"{line.local_params:,}" if line.local_params else zero


def _shards(line: Line, report: Report, zero: str) -> str:
    shards = () if line.memory is None or line.stands_for_others else line.memory.shards
    return ", ".join(map(str, shards)) or "--"


def _shape(what: str) -> Callable[[Line, Report], Value]:
    """Return the value function of a call's input or output shapes, as text; None without a call."""
    return lambda line, report: structure_text(getattr(line.row, what)) if line.row.called else None


def _axes(what: str) -> Callable[[Line], object]:
    """Return the function of a call's input or output shapes as tuples."""
    return lambda line: structure_data(getattr(line.row, what))


def _as_read(cell: CellText) -> Callable[[Line, Report], Value]:
    """Return the value function of a text cell; None if it is empty."""

    def value(line: Line, report: Report) -> Value:
        text = cell(line, report, "--")
        return None if text == "--" else text

    return value


def _memory(name: str) -> Callable[[Line, Report], Value]:
    """Return the value function of a field of a row's memory."""

    def value(line: Line, report: Report) -> Value:
        nbytes: int | None = getattr(line.memory, name)
        return nbytes

    return value


def _time(scale: float | None) -> Callable[[Line, Report], Value]:
    """Return the value function of a row's time in units of 1 / ``scale`` seconds, or in % of the step for None."""

    def value(line: Line, report: Report) -> Value:
        seconds = None if line.memory is None else line.memory.seconds
        if seconds is None:
            return None
        whole = sum(memory.seconds or 0.0 for memory in report.row_memory)
        return seconds * scale if scale is not None else 100 * seconds / whole if whole else 0.0

    return value


def _time_cell(scale: float | None) -> CellText:
    def cell(line: Line, report: Report, zero: str) -> str:
        value = _time(scale)(line, report)
        if not isinstance(value, float):
            return _absent(line)
        return f"{value:.3f}" if scale is not None else f"{value:.1f}%"

    return cell


def _of_memory(name: str, heading: str, about: str) -> Column:
    return Column(heading, about, _memory_cell(name), _memory(name), "bytes", of_memory=True)


def _known_mult_adds(line: Line, report: Report) -> Value:
    """Return the multiply-adds; None if unknown because nothing ran."""
    return None if _mult_adds(line, report, "") == "N/A" else line.mult_adds


def _share_of_params(line: Line, report: Report) -> float | None:
    is_known = line.num_params and not report.uninitialised_params
    return 100 * line.num_params / report.total_params if is_known else None


def _arithmetic(figure: str) -> CellText:
    """Return the cell function for the arithmetic of parameters or multiply-adds; empty if other rows are folded in."""

    def cell(line: Line, report: Report, zero: str) -> str:
        from .explain import explain_row  # Imported here: only this column needs it.

        count = line.num_params if figure == "parameters" else line.mult_adds
        own = line.row.num_params if figure == "parameters" else line.row.own_mult_adds
        step = explain_row(line.row).step(figure) if count and count == own else None
        return step.expr.text if step is not None and step.expr.value == count else "--"

    return cell


_params_arithmetic = _arithmetic("parameters")
_mult_adds_arithmetic = _arithmetic("mult_adds")

COLUMNS: dict[str, Column] = {
    "input_size": Column(
        "Input Shape", "shapes of the inputs; axes that scale with an open batch are -1", _input_size, _shape("inputs"),
        flat_width=25, data=_axes("inputs"), has_batch=True,
    ),
    "output_size": Column(
        "Output Shape", "shapes of the outputs, in the same form", _output_size, _shape("outputs"), flat_width=25,
        data=_axes("outputs"), has_batch=True,
    ),
    "num_params": Column(
        "Param #",
        "the module's own parameters, excluding tensors already counted in a row above; in parentheses, those that "
        "`model.parameters()` does not list, which the totals leave out", _num_params,
        _known("num_params"), "elements", adds_up=True,
    ),
    "params_percent": Column(
        "Param %", "share of all parameters", _params_percent, _share_of_params, "%", 10, adds_up=True
    ),
    "active_params": Column(
        "Active Param #",
        "the part of `num_params` that one token uses; for experts, the share that the router chooses",
        _of_parameters("active_params"), _known("active_params"), "elements", adds_up=True,
    ),
    "param_bytes": Column(
        "Param Bytes", "stored bytes of `num_params`; for quantised weights, the packed bytes with their scales",
        _of_parameters("param_bytes"), _known("param_bytes"), "bytes", adds_up=True,
    ),
    "unregistered_params": Column(
        "Unregistered Param #",
        "parameters in plain lists, dicts or attributes, which `model.parameters()` does not list",
        _unregistered_params, lambda line, _: line.unregistered_params, "elements", adds_up=True,
    ),
    "kernel_size": Column(
        "Kernel Shape", "`kernel_size` of modules that have one", _kernel_size, _as_read(_kernel_size),
        data=lambda line: line.row.kernel_size,
    ),
    "groups": Column(
        "Groups", "`groups` of modules that have them", _groups, lambda line, _: line.row.groups, "count", 10
    ),
    "mult_adds": Column(
        "Mult-Adds", "multiply-adds of the operators run in this call", _mult_adds, _known_mult_adds, "mult-adds"
    ),
    "flops": Column("FLOPs", "2 x `mult_adds`", _flops, _known_flops, "flops"),
    "trainable": Column(
        "Trainable", "whether all, some or none of the module's parameters are trained", _trainable,
        _as_read(_trainable), flat_width=10,
    ),
    "dtype": Column("Dtype", "dtype of the output", _dtype, lambda line, _: line.row.dtype, flat_width=10),
    "output_bytes": Column(
        "Output Bytes", "bytes of the output", _output_bytes,
        lambda line, _: line.row.output_bytes if line.row.called else None, "bytes",
    ),
    "params_arithmetic": Column(
        "Param Arithmetic", "the arithmetic behind `num_params` (see [Arithmetic](#arithmetic))", _params_arithmetic,
        _as_read(_params_arithmetic), flat_width=25,
    ),
    "mult_adds_arithmetic": Column(
        "Mult-Add Arithmetic", "the arithmetic behind `mult_adds`", _mult_adds_arithmetic,
        _as_read(_mult_adds_arithmetic),
        flat_width=25,
    ),
    "connected_to": Column(
        "Connected to", "the rows whose output this row reads, as in Keras", _connected_to, _as_read(_connected_to),
        flat_width=25,
    ),
    "var_name": Column(
        "Variable", "attribute name in the parent module", _var_name, lambda line, _: line.row.var_name or None
    ),
    "saved_bytes": _of_memory(
        "saved_bytes", "Saved", "bytes that the module's call saves for the backward"
    ),
    "peak_bytes": _of_memory("peak_bytes", "Live", "live bytes when the call returns"),
    "grad_bytes": _of_memory("grad_bytes", "Gradients", "bytes of the gradients of the module's parameters"),
    "optimizer_bytes": _of_memory(
        "optimizer_bytes", "Optimizer", "bytes of the optimizer state of the module's parameters"
    ),
    "time_ms": Column(
        "Time (ms)", "time of the module's own kernels on the GPU of `memory={'gpu': ...}`, without its children",
        _time_cell(1e3), _time(1e3), "ms", of_memory=True, adds_up=True,
    ),
    "time_percent": Column(
        "Time %", "the same as a share of the step", _time_cell(None), _time(None), "%", of_memory=True, adds_up=True,
    ),
    "local_params": Column(
        "Local Param #", "this rank's part of the module's own parameters", _local_params,
        lambda line, _: line.local_params, "elements", of_ranks=True, adds_up=True,
    ),
    "local_shapes": Column(
        "Local Shape",
        "shapes of this rank's parts of the module's own parameters, and the full shapes where they differ", _shards,
        _as_read(_shards), flat_width=25, of_ranks=True,
    ),
}  # fmt: skip
"""Every column by its name; the documentation's table is generated from it (docs/columns.py)."""

ALIASES = {"params": "num_params", "macs": "mult_adds"}
"""Other names of columns."""

DEFAULT_COLUMNS = ("output_size", "num_params")
MEMORY_COLUMNS = ("saved_bytes", "peak_bytes")
"""Shown in addition by default if a memory estimate was asked for."""
RANK_COLUMNS = ("local_params", "local_shapes")
"""Shown before them for one rank of many."""


def memory_columns(with_memory: bool, with_ranks: bool) -> tuple[str, ...]:
    """Return the columns that are shown by default in addition to those of a summary without memory."""
    return (RANK_COLUMNS if with_ranks else ()) + (MEMORY_COLUMNS if with_memory else ())


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
    :class:`~torchsummary_plus.report.report.Row`). ``report`` is the summary. ``unit`` is "bytes", "elements",
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
        def cell(line: Line, report: Report, zero: str) -> str:
            shown = value(line, report)
            if shown is None or isinstance(shown, str):
                return "--" if shown is None else shown
            return f"{shown:,}" if isinstance(shown, int) else f"{shown:,.2f}"

        COLUMNS[name] = Column(heading, about, cell, value, unit, width, of_memory, adds_up)
        return Registered(value, lambda: COLUMNS.__delitem__(name))

    return register


FRAME_COLUMNS = ("input_size", "output_size", "num_params", "mult_adds", "output_bytes", "dtype")
"""The columns of a data frame, unless they are chosen."""


def chosen_names(names: Iterable[str] | None, with_memory: bool = False, with_ranks: bool = False) -> tuple[str, ...]:
    """Return the names of the chosen columns, the defaults for None. Raises :class:`InputError`."""
    if isinstance(names, str):
        names = (names,)
    chosen = DEFAULT_COLUMNS + memory_columns(with_memory, with_ranks) if names is None else tuple(names)
    chosen = tuple(ALIASES.get(name, name) for name in chosen)
    for name in chosen:
        if name not in COLUMNS:
            raise choice_error("column", name, COLUMNS)
        if COLUMNS[name].of_ranks and not with_ranks:
            raise InputError(
                f"column {name!r} needs a model that is sharded, or the memory of one rank: "
                "summary(..., memory={'world_size': 8, 'build': build}), where build() shards the model"
            )
        if COLUMNS[name].of_memory and not with_memory:
            raise InputError(f'column {name!r} needs a memory estimate: summary(..., memory="train")')
    return chosen


def check_view(
    style: str,
    depth: int | None,
    col_names: Iterable[str] | None,
    with_memory: bool = False,
    with_ranks: bool = False,
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
