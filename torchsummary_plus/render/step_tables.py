"""Memory estimates side by side -> their table, independent of format: by kind, by phase, and on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..data.memory_records import ALL_KINDS
from ..data.units import mebibytes
from ..memory.estimate import Estimate
from .memory_text import kind_label, place, title
from .table import Cell, Field, Table, TableRow

FigureRow = tuple[str, str, "list[int | None]"]
"""A figure's name, its label, and its value for each estimate."""

ALLOCATED_AND_RESERVED = (
    "Allocated: the allocator's blocks that hold tensors. Reserved: what the caching allocator has taken from the"
    " device for them."
)
ON_DEVICE = "nvidia-smi shows the reserved memory plus the CUDA context, whether or not tensors use it."


def steps_table(names: Sequence[str], estimates: Sequence[Estimate]) -> Table:
    """Return the table with a row per figure, a column per estimate, and the differences from the first."""
    fields = [Field(name, name, "count") for name in names]
    fields += [Field(f"{name}-{names[0]}", f"{name} - {names[0]}", "count") for name in names[1:]]
    places = [f"{name}: {title(estimate)}; peak in the {place(estimate)}" for name, estimate in zip(names, estimates)]
    on_card = any(estimate.backend == "cuda" for estimate in estimates)
    return Table(
        title=" / ".join(names),
        labels="Figure",
        fields=tuple(fields),
        rows=tuple(_row(*figure) for figure in _figures(estimates)),
        notes=(*places, ALLOCATED_AND_RESERVED, *([ON_DEVICE] if on_card else [])),
    )


def _figures(estimates: Sequence[Estimate]) -> Iterator[FigureRow]:
    for kind in ALL_KINDS:
        at_peak: list[int | None] = [estimate.at_peak.get(kind, 0) for estimate in estimates]
        if any(at_peak):
            yield f"peak_{kind}_bytes", f"{kind_label(kind)} at the peak", at_peak
    if any(estimate.backend == "cuda" for estimate in estimates):
        yield "requested_bytes", "Requested at the peak", [estimate.requested_bytes for estimate in estimates]
    yield "peak_bytes", "Peak allocated", [estimate.peak_bytes for estimate in estimates]
    for phase in dict.fromkeys(phase for estimate in estimates for phase in estimate.phase_peaks):
        yield f"{phase}_peak_bytes", f"Peak of the {phase}", [estimate.phase_peaks.get(phase) for estimate in estimates]
    yield "steady_bytes", "Between steps", [estimate.steady_bytes for estimate in estimates]
    if any(estimate.backend == "cuda" for estimate in estimates):
        yield "reserved_bytes", "Peak reserved", [estimate.reserved_bytes for estimate in estimates]
        cached: list[int | None] = [estimate.reserved_bytes - estimate.peak_bytes for estimate in estimates]
        yield "cached_bytes", "Reserved beyond the peak", cached
        yield "device_bytes_low", "On the device, at least", [estimate.device_bytes[0] for estimate in estimates]
        yield "device_bytes_high", "On the device, at most", [estimate.device_bytes[1] for estimate in estimates]


def _row(name: str, label: str, values: list[int | None]) -> TableRow:
    first = values[0]
    differences = [None if value is None or first is None else value - first for value in values[1:]]
    cells = tuple(map(_cell, [*values, *differences]))
    return TableRow(label, name, 0, cells, Field(name, label, "bytes", scaled=True))


def _cell(nbytes: int | None) -> Cell:
    return Cell(nbytes, "N/A" if nbytes is None else mebibytes(nbytes))
