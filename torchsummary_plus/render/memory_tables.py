"""A memory estimate -> its tables by kind and by module, independent of format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

from ..data.caveats import assumed, caveats, not_confirmed
from ..data.errors import InputError, choice_error
from ..data.memory_records import ALL_KINDS
from ..data.units import mebibytes
from ..memory.estimate import Estimate, ModuleMemory
from ..memory.footprint import parents
from .columns import check_layout
from .memory_text import holders, kind_label, place, title
from .table import Cell, Field, Table, TableRow, Total

BY_KIND = ("bytes", "percent")
"""The columns of the table by kind, which has a row per kind of memory at the peak."""


@dataclass(frozen=True, slots=True)
class ModuleColumn:
    """A column of the table by module. ``adds_up`` columns exclude submodules and are summed when rows are folded."""

    heading: str
    nbytes: Callable[[ModuleMemory], int]
    adds_up: bool = True


def _at_peak(kind: str) -> Callable[[ModuleMemory], int]:
    return lambda module: dict(module.at_peak).get(kind, 0)


MODULE_COLUMNS: dict[str, ModuleColumn] = {
    "peak_own_bytes": ModuleColumn("Own at peak", lambda module: module.own_bytes),
    "peak_inclusive_bytes": ModuleColumn("Inclusive at peak", lambda module: module.inclusive_bytes, adds_up=False),
    **{f"peak_{kind}_bytes": ModuleColumn(f"{kind_label(kind)} at peak", _at_peak(kind)) for kind in ALL_KINDS},
    "output_bytes": ModuleColumn("Outputs", lambda module: module.own.output_bytes),
    "saved_bytes": ModuleColumn("Saved", lambda module: module.own.saved_bytes),
    "param_bytes": ModuleColumn("Parameters", lambda module: module.own.param_bytes),
    "grad_bytes": ModuleColumn("Gradients", lambda module: module.own.grad_bytes),
    "optimizer_bytes": ModuleColumn("Optimizer state", lambda module: module.own.optimizer_bytes),
}
"""The columns of the table by module: bytes at the peak by kind, and bytes over the whole step."""


def memory_table(
    estimate: Estimate, columns: Iterable[str] | None = None, depth: int | None = None, style: str = "torchsummary"
) -> Table:
    """Return the table by kind, or the one by module if ``columns`` belong to it.

    Raises :class:`InputError` for an unknown column or depth, and for columns of both tables.
    """
    names = (columns,) if isinstance(columns, str) else tuple(BY_KIND if columns is None else columns)
    for name in names:
        if name not in BY_KIND and name not in MODULE_COLUMNS:
            raise choice_error("column", name, (*BY_KIND, *MODULE_COLUMNS))
    check_layout(style, depth)
    if set(names) <= set(BY_KIND):
        return _table(estimate, "Kind", tuple(map(_KIND_FIELDS.__getitem__, names)), tuple(_kinds(estimate, names)))
    if set(names) & set(BY_KIND):
        raise InputError(
            f"columns are {', '.join(names)}; {' and '.join(BY_KIND)} belong to the table by kind; choose "
            "columns of one table"
        )
    fields = tuple(Field(name, MODULE_COLUMNS[name].heading, "bytes", scaled=True) for name in names)
    return _table(estimate, "Module", fields, tuple(_modules(estimate, names, depth, style == "tree")))


def memory_list(estimate: Estimate, units: str | None = None) -> Table:
    """Return a step's memory by kind and its peaks as totals, without rows; ``units`` are those of the notes."""
    kinds = (Total(_size_field(kind, kind_label(kind)), _size(n)) for kind, n in estimate.at_peak.items() if n)
    notes = (f"Largest at the peak: {holders(estimate, units)}", *caveats(estimate.unknown, estimate.assumptions))
    return Table(title(estimate), "", (), (), (*kinds, *_peaks(estimate)), notes)


def _table(estimate: Estimate, labels: str, fields: tuple[Field, ...], rows: tuple[TableRow, ...]) -> Table:
    notes = [f"Peak in the {place(estimate)}", f"Largest at the peak: {holders(estimate, 'auto')}"]
    if estimate.unknown:
        notes.append(not_confirmed(estimate.unknown))
    notes_shown, step = (*notes, *assumed(estimate.assumptions, None)), title(estimate)
    return Table(step, labels, fields, rows, tuple(_totals(estimate)), notes_shown, (step,))


_KIND_FIELDS = {"bytes": Field("bytes", "At the peak", "bytes", scaled=True), "percent": Field("percent", "%", "%")}


def _kinds(estimate: Estimate, names: Iterable[str]) -> Iterator[TableRow]:
    for kind, nbytes in estimate.at_peak.items():
        share = 100 * nbytes / estimate.peak_bytes if estimate.peak_bytes else 0.0
        cells = {"bytes": _size(nbytes), "percent": Cell(share, f"{share:.1f}%")}
        yield TableRow(kind_label(kind), kind, 0, tuple(map(cells.__getitem__, names)))


def _modules(estimate: Estimate, names: tuple[str, ...], depth: int | None, nested: bool) -> Iterator[TableRow]:
    """Yield a row per module; modules deeper than ``depth`` are folded into the row above, which preserves sums."""
    modules = estimate.by_module
    levels, home = [0], [0]
    for index, parent in enumerate(parents([module.path for module in modules])):
        if index:
            levels.append(levels[parent] + 1)
            home.append(home[parent] if depth is not None and levels[index] > depth else index)
    sums: dict[int, list[int]] = {}
    for index, module in enumerate(modules):
        own = [MODULE_COLUMNS[name].nbytes(module) for name in names]
        if home[index] == index:
            sums[index] = own
        else:
            above = sums[home[index]]
            above[:] = [a + b * MODULE_COLUMNS[name].adds_up for name, a, b in zip(names, above, own)]
    for index, own in sums.items():
        path = modules[index].path
        label = (path.rsplit(".", 1)[-1] if nested else path) or "(root)"
        yield TableRow(label, path, levels[index] if nested else 0, tuple(map(_size, own)))


def _peaks(estimate: Estimate) -> Iterator[Total]:
    """Yield the peaks and their ranges: by what is not known exactly, and on the device, with its context."""
    least, most = estimate.peak_range
    low, high = estimate.device_bytes
    where = f", in the {place(estimate)}"
    yield Total(_size_field("peak_bytes", "Peak allocated"), _size(estimate.peak_bytes), where)
    if least < most:
        yield Total(_size_field("peak_bytes", "Peak range"), _size(least, most))
    yield Total(_size_field("reserved_bytes", "Peak reserved"), _size(estimate.reserved_bytes))
    if estimate.backend == "cuda" and estimate.reserved_range[0] < estimate.reserved_range[1]:
        yield Total(_size_field("reserved_bytes", "Reserved range"), _size(*estimate.reserved_range))
    if high > estimate.reserved_bytes:
        yield Total(_size_field("device_bytes", "On the device, with the context"), _size(low, high))
    yield Total(_size_field("steady_bytes", "Between steps"), _size(estimate.steady_bytes))
    if estimate.kv_cache_bytes:
        yield Total(_size_field("kv_cache_bytes", "KV cache after the last token"), _size(estimate.kv_cache_bytes))


def _totals(estimate: Estimate) -> Iterator[Total]:
    """Yield the peaks with a range as two totals: a field of data has one value."""
    for total in _peaks(estimate):
        field, cell = total.field, total.cell
        if cell.most is None:
            yield total
            continue
        for end, words, value in (("low", "at least", cell.value), ("high", "at most", cell.most)):
            named = replace(field, name=f"{field.name}_{end}", heading=f"{field.heading}, {words}")
            yield Total(named, _size(cast("int", value)))


def _size_field(name: str, heading: str) -> Field:
    return Field(name, heading, "bytes", scaled=True)


def _size(nbytes: int, most: int | None = None) -> Cell:
    ends = [nbytes] if most is None else [nbytes, most]
    return Cell(nbytes, " to ".join(map(mebibytes, ends)), most=most)
