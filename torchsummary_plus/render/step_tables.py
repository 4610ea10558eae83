"""Steps -> tables independent of format: estimates side by side, and the time by module and by kind of kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..data.memory_records import ALL_KINDS
from ..data.units import common_unit
from ..formats.table import Field, Table, TableRow, cells
from ..memory.estimate import Estimate
from ..timing.step_time import StepTime, bound_by
from .memory_tables import kind_label, place, title

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
        rows=tuple(_row(field, values) for field, values in _figures(estimates, times)),
        notes=(*notes, *([ON_DEVICE] if on_card else [])),
        unit=common_unit(max(estimate.peak_bytes for estimate in estimates)),
    )


def _figures(
    estimates: Sequence[Estimate], times: Sequence[float | None]
) -> Iterator[tuple[Field, Sequence[float | None]]]:
    """Yield each figure with its value for each estimate."""
    on_card = any(estimate.backend == "cuda" for estimate in estimates)

    def figure(name: str, label: str, values: Iterable[int | None]) -> tuple[Field, list[int | None]]:
        return Field(name, label, "bytes", scaled=True), list(values)

    for kind in ALL_KINDS:
        if any(estimate.at_peak.get(kind) for estimate in estimates):
            yield figure(
                f"peak_{kind}_bytes", f"{kind_label(kind)} at the peak", (e.at_peak.get(kind, 0) for e in estimates)
            )
    if on_card:
        yield figure("requested_bytes", "Requested at the peak", (e.requested_bytes for e in estimates))
    yield figure("peak_bytes", "Peak", (e.peak_bytes for e in estimates))
    for phase in dict.fromkeys(phase for estimate in estimates for phase in estimate.phase_peaks):
        yield figure(f"{phase}_peak_bytes", f"Peak of the {phase}", (e.phase_peaks.get(phase) for e in estimates))
    yield figure("steady_bytes", "Left after the step", (e.steady_bytes for e in estimates))
    if on_card:
        yield figure("reserved_bytes", "Reserved by the allocator", (e.reserved_bytes for e in estimates))
        yield figure(
            "cached_bytes", "Reserved, not in use at the peak", (e.reserved_bytes - e.peak_bytes for e in estimates)
        )
        yield figure("device_bytes_low", "nvidia-smi, at least", (e.device_bytes[0] for e in estimates))
        yield figure("device_bytes_high", "nvidia-smi, at most", (e.device_bytes[1] for e in estimates))
    if any(seconds is not None for seconds in times):
        yield Field("time_ms", "Time (ms)", "ms"), [None if seconds is None else 1e3 * seconds for seconds in times]


def _row(field: Field, values: Sequence[float | None]) -> TableRow:
    first = values[0]
    differences = [None if value is None or first is None else value - first for value in values[1:]]
    return TableRow(field.heading, field.name, 0, tuple(map(field.cell, [*values, *differences])), field)


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
                *cells(_MODULE, _times(module.own_seconds, module.inclusive_seconds, whole=time.seconds)),
                _MODULE[3].cell(bound_by(module.memory_bound), "--"),
            ),
        )
        for module in time.by_module
    )
    kinds = tuple(
        TableRow(kind.replace("_", " "), kind, 0, cells(_KIND, _times(seconds, whole=time.seconds)))
        for kind, seconds in time.by_kind.items()
    )
    notes = tuple(str(time).splitlines())
    by_module = Table("By module", "Module", _MODULE, modules, (), notes)
    return (by_module, Table("By kind", "Kernels", _KIND, kinds)) if kinds else (by_module,)


def _times(*seconds: float, whole: float) -> tuple[float, ...]:
    """Return seconds as milliseconds, and the last ones as a share of the whole in percent."""
    return *(1e3 * each for each in seconds), 100 * seconds[-1] / whole
