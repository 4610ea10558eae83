"""A memory estimate -> its tables by kind and by module, independent of format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..data.caveats import reasons
from ..data.errors import InputError, choice_error
from ..data.memory_records import ALL_KINDS
from ..data.units import common_unit, in_unit, mebibytes
from ..formats.table import Cell, Field, Table, TableRow
from ..memory.attribution import parents
from ..memory.estimate import Estimate, ModuleMemory
from ..table.columns import check_layout
from .memory_text import kind_label, place, sentences, title, verdict

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


SMALL = 0.002
"""Kinds below this share of the peak are folded into one row, if there are several."""

ANSWER = (
    Field("bytes", "Size", "bytes", scaled=True),
    Field("percent", "Share", "%"),
    Field("words", ""),
)


def answer_table(estimate: Estimate) -> Table:
    """Return what a reader wants to know of a step, which every format for people shows.

    That is whether it fits, the kinds at the peak with their shares, largest first, the peak and the most that it may
    be, and at most two sentences. :func:`details_text` has the rest.
    """
    unit, (least, most) = common_unit(estimate.peak_bytes), estimate.peak_range
    why = reasons(estimate.unknown, estimate.assumptions) or "some sizes depend on data"
    rows = [*_largest_kinds(estimate), _row("Peak", "peak", estimate.peak_bytes, words=f"in the {place(estimate)}")]
    for label, name, nbytes, words in (("At least", "at_least", least, ""), ("At most", "at_most", most, why)):
        if in_unit(nbytes, unit) != in_unit(estimate.peak_bytes, unit):
            rows.append(_row(label, name, nbytes, words=words))
    step, notes = title(estimate), tuple(sentences(estimate))
    return Table(
        step, "Kind", ANSWER, tuple(rows), (), notes, (step,), widest=WHOLE, answer=verdict(estimate), unit=unit
    )


WHOLE = 1000
"""As the maximum of characters: sentences are not shortened."""


def _largest_kinds(estimate: Estimate) -> Iterator[TableRow]:
    """Yield the kinds at the peak, largest first, and one row of the small ones and those that are 0 there."""
    peak = max(1, estimate.peak_bytes)
    ranked = sorted(estimate.at_peak.items(), key=lambda kind: -kind[1])
    small = [(kind, nbytes) for kind, nbytes in ranked if 0 < nbytes < SMALL * peak]
    folded = small if len(small) > 1 else []
    whole = _of_step(estimate)
    for kind, nbytes in ranked:
        if nbytes and (kind, nbytes) not in folded:
            yield _row(kind_label(kind), kind, nbytes, nbytes / peak)
    absent = [(kind, 0) for kind in whole if whole[kind] and not estimate.at_peak.get(kind)]
    if folded or absent:
        total = sum(nbytes for _, nbytes in folded)
        names = [_name(kind, nbytes, whole.get(kind, 0)) for kind, nbytes in folded + absent]
        yield _row("Other", "other", total, total / peak, ", ".join(names))


def _of_step(estimate: Estimate) -> dict[str, int]:
    """Return the bytes over the whole step of the kinds that come and go in it."""
    whole = estimate.by_module[0].inclusive
    return {
        "gradients": whole.grad_bytes,
        "optimizer_state": whole.optimizer_bytes,
        "saved_activations": whole.saved_bytes,
    }


def _name(kind: str, at_peak: int, in_step: int) -> str:
    """Return the name of a kind that is small at the peak, and whether it is larger elsewhere in the step."""
    words = kind.replace("_", " ").replace("kv", "KV")
    if not at_peak:
        return f"{words} (none at this peak)"
    return f"{words} (most not allocated at this peak)" if at_peak < in_step / 2 else words


def _row(label: str, name: str, nbytes: int, share: float | None = None, words: str = "") -> TableRow:
    percent = Cell(None, "") if share is None else Cell(100 * share, f"{100 * share:.1f} %")
    return TableRow(label, name, 0, (_size(nbytes), percent, Cell(words, words)))


def _table(estimate: Estimate, labels: str, fields: tuple[Field, ...], rows: tuple[TableRow, ...]) -> Table:
    step = title(estimate)
    return Table(
        step, labels, fields, rows, (), tuple(sentences(estimate)), (step,), answer=verdict(estimate),
        unit=common_unit(estimate.peak_bytes),
    )  # fmt: skip


_KIND_FIELDS = {"bytes": Field("bytes", "At the peak", "bytes", scaled=True), "percent": Field("percent", "%", "%")}


def _kinds(estimate: Estimate, names: Iterable[str]) -> Iterator[TableRow]:
    for kind, nbytes in sorted(estimate.at_peak.items(), key=lambda kind: -kind[1]):
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


def _size(nbytes: int) -> Cell:
    return Cell(nbytes, mebibytes(nbytes))
