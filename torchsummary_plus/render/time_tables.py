"""The time of a step -> its tables by module and by kind of kernel, independent of format."""

from __future__ import annotations

from ..formats.table import Cell, Field, Table, TableRow
from ..timing.step_time import StepTime, bound_by

_MODULE = (
    Field("own_ms", "Own ms", "ms", adds_up=True),
    Field("inclusive_ms", "Inclusive ms", "ms"),
    Field("percent", "% of the step", "%"),
    Field("bound", "Bound by", ""),
)
_KIND = (Field("ms", "ms", "ms", adds_up=True), Field("percent", "%", "%"))


def time_tables(time: StepTime) -> tuple[Table, ...]:
    """Return the table by module, with what limits each, and by kind of kernel unless the time was measured."""
    modules = tuple(
        TableRow(
            module.path.rsplit(".", 1)[-1] or "(root)",
            module.path,
            module.path.count(".") + 1 if module.path else 0,
            (
                _ms(module.own_seconds),
                _ms(module.inclusive_seconds),
                _share(module.inclusive_seconds, time.seconds),
                _bound(module.memory_bound),
            ),
        )
        for module in time.by_module
    )
    kinds = tuple(
        TableRow(kind.replace("_", " "), kind, 0, (_ms(seconds), _share(seconds, time.seconds)))
        for kind, seconds in time.by_kind.items()
    )
    notes = tuple(str(time).splitlines())
    by_module = Table("By module", "Module", _MODULE, modules, (), notes)
    return (by_module, Table("By kind", "Kernels", _KIND, kinds)) if kinds else (by_module,)


def _ms(seconds: float) -> Cell:
    return Cell(1e3 * seconds, f"{1e3 * seconds:,.3f}")


def _share(seconds: float, whole: float) -> Cell:
    share = 100 * seconds / whole
    return Cell(share, f"{share:.1f}%")


def _bound(memory_bound: float | None) -> Cell:
    word = bound_by(memory_bound)
    return Cell(word, word or "--")
