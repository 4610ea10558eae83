"""Steps -> tables independent of format: estimates side by side, and the time by module and by kind of kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..data.memory_records import ALL_KINDS
from ..data.units import common_unit, mebibytes
from ..formats.table import Cell, Field, Table, TableRow
from ..memory.estimate import Estimate
from ..timing.step_time import StepTime, bound_by
from .memory_tables import kind_label, place, title

FigureRow = tuple[str, str, "list[int | None]"]  # A figure's name, its label, and its value for each estimate.

ON_DEVICE = "nvidia-smi shows what torch's allocator has reserved, in use or not, and the CUDA context."


def steps_table(names: Sequence[str], estimates: Sequence[Estimate], times: Sequence[float | None] = ()) -> Table:
    """Return the table with a row per figure, a column per estimate, and the differences from the first.

    ``times`` are the steps' seconds, None where they are not known.
    """
    fields = [Field(name, name, "count") for name in names]
    fields += [Field(f"{name}-{names[0]}", f"{name} - {names[0]}", "count") for name in names[1:]]
    places: dict[str, list[str]] = {}
    for name, estimate in zip(names, estimates):
        places.setdefault(f"{title(estimate)}; peak in the {place(estimate)}", []).append(name)
    notes = [f"{' and '.join(of)}: {words}" for words, of in places.items()]
    on_card = any(estimate.backend == "cuda" for estimate in estimates)
    return Table(
        title=" / ".join(names),
        labels="Figure",
        fields=tuple(fields),
        rows=(*(_row(*figure) for figure in _figures(estimates)), *_times(times)),
        notes=(*notes, *([ON_DEVICE] if on_card else [])),
        unit=common_unit(max(estimate.peak_bytes for estimate in estimates)),
    )


def _figures(estimates: Sequence[Estimate]) -> Iterator[FigureRow]:
    for kind in ALL_KINDS:
        at_peak: list[int | None] = [estimate.at_peak.get(kind, 0) for estimate in estimates]
        if any(at_peak):
            yield f"peak_{kind}_bytes", f"{kind_label(kind)} at the peak", at_peak
    if any(estimate.backend == "cuda" for estimate in estimates):
        yield "requested_bytes", "Requested at the peak", [estimate.requested_bytes for estimate in estimates]
    yield "peak_bytes", "Peak", [estimate.peak_bytes for estimate in estimates]
    for phase in dict.fromkeys(phase for estimate in estimates for phase in estimate.phase_peaks):
        yield f"{phase}_peak_bytes", f"Peak of the {phase}", [estimate.phase_peaks.get(phase) for estimate in estimates]
    yield "steady_bytes", "Left after the step", [estimate.steady_bytes for estimate in estimates]
    if any(estimate.backend == "cuda" for estimate in estimates):
        yield "reserved_bytes", "Reserved by the allocator", [estimate.reserved_bytes for estimate in estimates]
        cached: list[int | None] = [estimate.reserved_bytes - estimate.peak_bytes for estimate in estimates]
        yield "cached_bytes", "Reserved, not in use at the peak", cached
        yield "device_bytes_low", "nvidia-smi, at least", [estimate.device_bytes[0] for estimate in estimates]
        yield "device_bytes_high", "nvidia-smi, at most", [estimate.device_bytes[1] for estimate in estimates]


def _times(times: Sequence[float | None]) -> Iterator[TableRow]:
    if any(seconds is not None for seconds in times):
        values = [None if seconds is None else 1e3 * seconds for seconds in times]
        first = values[0]
        differences = [None if value is None or first is None else value - first for value in values[1:]]
        cells = (Cell(value, "N/A" if value is None else f"{value:,.3f}") for value in [*values, *differences])
        yield TableRow("Time (ms)", "time_ms", 0, tuple(cells), Field("time_ms", "Time (ms)", "ms"))


def _row(name: str, label: str, values: list[int | None]) -> TableRow:
    first = values[0]
    differences = [None if value is None or first is None else value - first for value in values[1:]]
    cells = tuple(map(_cell, [*values, *differences]))
    return TableRow(label, name, 0, cells, Field(name, label, "bytes", scaled=True))


def _cell(nbytes: int | None) -> Cell:
    return Cell(nbytes, "N/A" if nbytes is None else mebibytes(nbytes))


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
