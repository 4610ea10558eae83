"""The columns a table can have: a registry, one entry each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..errors import InputError, choice_error
from ..report import Report
from ..units import structure_text
from .lines import Line

Cell = Callable[[Line, Report, str], str]
"""A line, the report it is of, and what stands for a zero in this style -> text."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, how its cells read, and the width it does not fall below in torchsummary's table.

    One ``of_memory`` is there only in a summary that was asked for the memory of a step.
    """

    heading: str
    cell: Cell
    flat_width: int = 15
    of_memory: bool = False


def _input_size(line: Line, report: Report, zero: str) -> str:
    return structure_text(line.row.inputs) if line.row.called else _absent(line)


def _output_size(line: Line, report: Report, zero: str) -> str:
    return structure_text(line.row.outputs) if line.row.called else _absent(line)


def _absent(line: Line) -> str:
    """What a row without a call shows: nothing for a container, else that nobody knows."""
    return "--" if line.row.kind == "container" else "N/A"


def _num_params(line: Line, report: Report, zero: str) -> str:
    if line.num_params:
        return f"{line.num_params:,}"
    return "(recursive)" if line.row.repeated else zero


def _params_percent(line: Line, report: Report, zero: str) -> str:
    if not line.num_params:
        return "--"
    return f"{100 * line.num_params / report.total_params:.2f}%"


def _mult_adds(line: Line, report: Report, zero: str) -> str:
    if line.unknown_ops:
        return f">={line.mult_adds:,}"
    if not line.row.called and line.row.kind != "container" and not line.mult_adds:
        return "N/A"
    return f"{line.mult_adds:,}" if line.mult_adds else zero


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


def _held(name: str) -> Cell:
    """The cell of one figure of a row's memory."""

    def cell(line: Line, report: Report, zero: str) -> str:
        nbytes = getattr(line.memory, name)
        if nbytes is None:
            return _absent(line)
        return f"{nbytes:,}" if nbytes else zero

    return cell


COLUMNS: dict[str, Column] = {
    "input_size": Column("Input Shape", _input_size, 25),
    "output_size": Column("Output Shape", _output_size, 25),
    "num_params": Column("Param #", _num_params),
    "params_percent": Column("Param %", _params_percent, 10),
    "kernel_size": Column("Kernel Shape", _kernel_size),
    "groups": Column("Groups", _groups, 10),
    "mult_adds": Column("Mult-Adds", _mult_adds),
    "trainable": Column("Trainable", _trainable, 10),
    "dtype": Column("Dtype", _dtype, 10),
    "output_bytes": Column("Output Bytes", _output_bytes),
    "var_name": Column("Variable", _var_name),
    "saved_bytes": Column("Saved Bytes", _held("saved_bytes"), of_memory=True),
    "peak_bytes": Column("Live Bytes", _held("peak_bytes"), of_memory=True),
    "grad_bytes": Column("Gradient Bytes", _held("grad_bytes"), of_memory=True),
    "optimizer_bytes": Column("Optimizer Bytes", _held("optimizer_bytes"), of_memory=True),
}

DEFAULT_COLUMNS = ("output_size", "num_params")
MEMORY_COLUMNS = ("saved_bytes", "peak_bytes")
"""What stands beside them by default where the memory of a step was asked for."""


def chosen_columns(names: Iterable[str] | None, with_memory: bool = False) -> list[Column]:
    """The columns of some names, in their order; the default ones for None. Raises :class:`InputError`."""
    if isinstance(names, str):
        names = (names,)
    if names is None:
        names = DEFAULT_COLUMNS + (MEMORY_COLUMNS if with_memory else ())
    chosen = []
    for name in names:
        if name not in COLUMNS:
            raise choice_error("column", name, COLUMNS)
        if COLUMNS[name].of_memory and not with_memory:
            raise InputError(f'column {name!r} is of the memory of a step: summary(..., memory="train") makes it')
        chosen.append(COLUMNS[name])
    return chosen
