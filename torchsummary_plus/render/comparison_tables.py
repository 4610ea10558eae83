"""A comparison: its data, the table of its figures and that of its aligned layers, independent of format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ..data.answers import caveats
from ..data.errors import choice_error
from ..data.memory_records import StepInfo
from ..data.records import Group, Structure
from ..data.units import structure_text
from ..formats.table import Cell, Field, Table, TableRow, Total, as_flops, meant
from ..table.columns import (
    GUESSES,
    chosen_names,
    column_field,
    default_names,
    report_totals,
    unregistered_note,
    without_shape,
)
from ..table.lines import STYLES, Line
from ..table.rows import Report
from .alignment import ComparedLayer, align
from .columns import COLUMNS


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """Peaks of a model's steps in bytes, and the largest batch whose training step fits in ``gpu``.

    ``info`` has the settings: batch size, mode, dtypes, device, GPU, optimizer and loss. A figure is None if it was not
    asked for or is unknown; ``gpu`` is a GPU's name, an amount of memory, or "". ``unknown`` lists operators without a
    scratch-memory rule, ``assumptions`` what the peaks and the largest batch assume.
    """

    info: StepInfo
    training_peak_bytes: int | None = None
    inference_peak_bytes: int | None = None
    gpu: str = ""
    max_batch_size: int | None = None
    unknown: tuple[tuple[str, int], ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def batch_size(self) -> int:
        """The batch size of the steps."""
        return self.info.batch_size


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a comparison: its name, its summary and the memory of its steps."""

    name: str
    report: Report
    peaks: StepPeaks | None = None


@dataclass(frozen=True)
class Compared:
    """Entries in order; the others are compared with the first.

    ``ratios`` adds each figure's ratio to the first entry's, ``changes_only`` leaves out layers that all share.
    """

    entries: tuple[Entry, ...]
    ratios: bool = False
    changes_only: bool = False


LOWER_IS_BETTER = (
    "total_params", "total_mult_adds", "total_flops", "forward_backward_bytes", "param_bytes", "total_bytes",
    "training_peak_bytes", "inference_peak_bytes",
)  # fmt: skip
HIGHER_IS_BETTER = ("max_batch_size",)

STEP_FIGURES = (
    Field("training_peak_bytes", "Training peak", "bytes", scaled=True),
    Field("inference_peak_bytes", "Inference peak", "bytes", scaled=True),
    Field("max_batch_size", "Largest batch", "count"),
)

NOT_COUNTED = "Not counted"

FEW_MATCH = "Fewer than half of the layers match, so only totals are shown; layers=True shows the layers"

MARKS = {"same": "", "changed": "~", "removed": "-", "added": "+"}
"""The mark of a row of layers: the same in all, different, missing in some, missing in the first."""


ORIENTS = ("figures", "models")  # What the rows of the main table are.

PER_SAMPLE = " per sample"

WORK = ("mult-adds", "flops")  # Units of figures that are per sample.
FLOPS = Field("total_flops", f"FLOPs{PER_SAMPLE}", "flops")  # A figure that is shown only if it is chosen.


def figures_table(compared: Compared, chosen: Sequence[str] | None = None) -> Table:
    """Return the table with a row per figure, a column per entry and, if asked for, ratios to the first entry.

    None chooses all figures but the FLOPs and, beside peaks, torchsummary's guesses at them. Raises
    :class:`InputError` for an unknown figure.
    """
    entries = compared.entries
    first, *others = [entry.name for entry in entries]
    fields = [Field(name, name, "count") for name in (first, *others)]
    if compared.ratios:
        fields += [Field(f"{name}/{first}", f"{name} / {first}", "ratio") for name in others]
    figures = [{total.field.name: total for total in _figures(entry)} for entry in entries]
    rows = {field.name: _figure_row(field, figures, compared.ratios) for field in _shared_order(figures)}
    known = {name: row for name, row in rows.items() if any(cell.value is not None for cell in row.cells)}
    for name in chosen or ():
        if not meant(name, known):
            raise choice_error("figure", name, known)
    hidden = {FLOPS.name, *(GUESSES if any(field.name in known for field in STEP_FIGURES) else ())}
    shown = [name for name in known if name not in hidden] if chosen is None else [meant(n, known) for n in chosen]
    return Table(
        title=" / ".join(entry.name for entry in entries), labels="Figure", fields=tuple(fields),
        rows=tuple(known[name] for name in shown), notes=tuple(_figure_notes(entries)),
    )  # fmt: skip


def models_table(table: Table, count: int) -> Table:
    """Return the table of figures with a row for each of ``count`` models: a column per figure, and its ratio."""
    fields, columns = [], []
    for row in table.rows:
        assert row.figure is not None  # Every row of this table has one.
        fields.append(row.figure)
        columns.append(row.cells[:count])
        if len(row.cells) > count:
            first = table.fields[0].heading
            fields.append(Field(f"{row.path}_ratio", f"{row.figure.heading} / {first}", "ratio"))
            columns.append((Cell(None, ""), *row.cells[count:]))
    rows = [TableRow(field.heading, field.name, 0, tuple(own)) for field, *own in zip(table.fields[:count], *columns)]
    return replace(table, labels="Model", fields=tuple(fields), rows=tuple(rows))


def _figures(entry: Entry) -> Iterator[Total]:
    """Yield an entry's totals, without the words that a table of one model adds, and the memory of its steps."""
    for total in report_totals(entry.report):
        is_adapter = total.field.name.startswith("adapter_")
        text = f"{total.cell.value:,}" if is_adapter else total.cell.text.partition(" (")[0]
        cell = replace(total.cell, text=text)
        if total.field.unit != "mult-adds":
            yield Total(total.field, cell)
            continue
        count = cell.value
        if isinstance(count, int):
            count = per_sample(count, entry.report)
            cell = Cell(count, f"{'>=' * text.startswith('>=')}{count:,}")
        yield Total(replace(total.field, heading=f"Mult-adds{PER_SAMPLE}"), cell)
        yield Total(FLOPS, as_flops(cell))

    for field in STEP_FIGURES:
        yield Total(field, field.cell(None if entry.peaks is None else getattr(entry.peaks, field.name)))


def per_sample(mult_adds: int, report: Report) -> int:
    """Return multiply-adds for one sample of the batch that ran, rounded."""
    return round(mult_adds / (report.run.batch_size or 1))


def _shared_order(figures: Iterable[Mapping[str, Total]]) -> list[Field]:
    """Return the fields of all entries: one that only some entries have follows the field that precedes it there."""
    fields: dict[str, Field] = {}
    names: list[str] = []
    for own in figures:
        place = 0
        for name, total in own.items():
            if name not in fields:
                names.insert(place, name)
                fields[name] = total.field
            place = names.index(name) + 1
    return [fields[name] for name in names]


def _figure_row(field: Field, figures: Iterable[Mapping[str, Total]], with_ratios: bool) -> TableRow:
    """Return a figure's row: none is the best if all are equal, or if one is only a lower bound."""
    cells = [own[field.name].cell if field.name in own else Cell(None, "N/A") for own in figures]
    values = [cell.value for cell in cells if isinstance(cell.value, int | float)]
    choose = min if field.name in LOWER_IS_BETTER else max if field.name in HIGHER_IS_BETTER else None
    if choose and len(set(values)) > 1 and not any(cell.text.startswith(">=") for cell in cells):
        cells = [replace(cell, best=cell.value == choose(values)) for cell in cells]
    ratios, first = [], cells[0].value
    for value in [cell.value for cell in cells[1:]] if with_ratios else []:
        if isinstance(value, int | float) and isinstance(first, int | float) and first:
            ratios.append(Cell(value / first, f"{value / first:.2f}x"))
        else:
            ratios.append(Cell(None, ""))
    return TableRow(field.heading, field.name, 0, (*cells, *ratios), field)


def _figure_notes(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the notes of the entries, each once."""
    of_reports: list[tuple[str, Iterable[str]]] = []
    of_peaks: list[tuple[str, Iterable[str]]] = []
    steps: dict[str, list[str]] = {}
    for name, report, peaks in ((entry.name, entry.report, entry.peaks) for entry in entries):
        operators = ", ".join(f"{name} x {count:,}" for name, count in report.unknown_ops)
        uncounted = [f"{NOT_COUNTED}: {what}" for what in (operators, without_shape(report)) if what]
        unlisted = unregistered_note(report.unregistered) if report.unregistered else ""
        notes = [*uncounted, unlisted, report.run.note]
        of_reports.append((name, [note for note in notes if note]))
        of_peaks.append((name, [] if peaks is None else caveats(peaks.unknown, peaks.assumptions)))
        if peaks is not None:
            limit = "" if peaks.max_batch_size is None else f"; largest batch in {peaks.gpu}"
            steps.setdefault(f"batch {peaks.batch_size:,}, {peaks.info.settings}{limit}", []).append(name)
    yield from _merged(of_reports)
    for settings, of in steps.items():
        yield f"Steps: {settings}" if len(of) == len(entries) else f"Steps of {', '.join(of)}: {settings}"
    yield from _merged(of_peaks)


def _merged(notes: Sequence[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Yield the notes of models, by name, each once: with the names of its models unless it is of all."""
    names: dict[str, list[str]] = {}
    for name, lines in notes:
        for line in lines:
            names.setdefault(line, []).append(name)
    for line, of in names.items():
        if len(of) == len(notes):
            yield f"{line[0].upper()}{line[1:]}"
        elif line.startswith(NOT_COUNTED):
            yield f"{NOT_COUNTED} in {', '.join(of)}{line.removeprefix(NOT_COUNTED)}"
        else:
            yield f"In {', '.join(of)}: {line[0].lower()}{line[1:]}"


AlignedRow = tuple[tuple[Line, ComparedLayer] | None, ...]
"""For each entry, its line in a row of layers and the layer that this is compared by; None if it has none."""


def aligned_lines(compared: Compared, style: str, depth: int | None) -> list[AlignedRow]:
    """Align the entries' lines in a style, with levels below ``depth`` folded."""
    differ = len({entry.report.run.batch_size for entry in compared.entries}) > 1
    every = []
    for entry in compared.entries:
        batch = (entry.report.run.batch_size or 1) if differ else None
        every.append([(line, _layer(line, batch)) for line in STYLES[style](entry.report, depth)])
    places = align([[layer for _, layer in own] for own in every])
    return [tuple(None if at is None else own[at] for own, at in zip(every, row)) for row in places]


def layers_match(aligned: Sequence[AlignedRow]) -> bool:
    """Return whether at least half of the rows have a layer that two models share: by name, or by type and shapes."""
    shared = 0
    for row in aligned:
        there = [item[1] for item in row if item is not None]
        alike = len({layer.kind for layer in there}) == 1 or len({layer.path for layer in there}) == 1
        shared += len(there) > 1 and alike
    return 2 * shared >= len(aligned)


def layers_table(
    compared: Compared, aligned: Sequence[AlignedRow], columns: Iterable[str] | None, nested: bool
) -> Table:
    """Return the table with a row per layer or group of matching layers, and the chosen columns for each entry."""
    entries = compared.entries
    names = shared_names(compared, columns)
    rows, alike = [], 0
    for row in aligned:
        change = _change(row)
        alike += change == "same"
        if not (compared.changes_only and change == "same"):
            lines = [None if item is None else item[0] for item in row]
            rows.append(_layer_row(entries, lines, change, names, nested))
    fields = []
    for entry, name in product(entries, names):
        own = column_field(f"{entry.name}.{name}", COLUMNS[name], entry.report)
        sample = PER_SAMPLE if own.unit in WORK else ""
        fields.append(replace(own, heading=f"{entry.name}: {own.heading}{sample}", adds_up=False))
    notes = ["~ changed, + not in the first, - not in all"]
    if len({entry.report.run.batch_size for entry in entries}) > 1:
        notes.append("Batch sizes differ; differences due only to the batch size are not marked")
    if compared.changes_only:
        notes.append(f"Identical in all, left out: {alike:,}")
    title = "Layers of " + ", ".join(entry.name for entry in entries)
    return Table(title, "Layer (type)", (Field("change", "Diff"), *fields), tuple(rows), notes=tuple(notes))


def shared_names(compared: Compared, columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return each entry's columns; memory columns need all entries to have an estimate. Raises :class:`InputError`."""
    reports = [entry.report for entry in compared.entries]
    with_memory, with_ranks = all(report.has_memory for report in reports), all(report.is_sharded for report in reports)
    return chosen_names(default_names(False, False) if columns is None else columns, with_memory, with_ranks)


def _layer(line: Line, batch: int | None) -> ComparedLayer:
    """Return what a line is compared by; with a batch size, shapes for any batch."""
    row = line.row
    details = f"{row.kernel_size} {row.groups}"
    shapes = (row.outputs, row.inputs)
    outputs, inputs = (structure_text(s if batch is None else _for_any_batch(s, batch)) for s in shapes)
    return ComparedLayer(row.class_name, outputs, inputs, line.num_params, details, row.path)


def _for_any_batch(structure: Structure, batch: int) -> Structure:
    """Return shapes with -1 for the batch: the axes that are known to scale with it, else the first of its length."""
    if isinstance(structure, Group):
        return replace(structure, items=tuple(_for_any_batch(item, batch) for item in structure.items))
    if structure is None or structure.batch_axes or batch not in structure.shape:
        return structure
    return replace(structure, batch_axes=(structure.shape.index(batch),))


def _change(row: AlignedRow) -> str:
    """Return whether the layers of a row are the same, as they are or for any batch."""
    there = [item for item in row if item is not None]
    if len(there) < len(row):
        return "added" if row[0] is None else "removed"
    if len({layer.kind for _, layer in there}) == 1 or len({_layer(line, None).kind for line, _ in there}) == 1:
        return "same"
    return "changed"


def _layer_row(
    entries: Sequence[Entry], lines: Sequence[Line | None], change: str, names: Sequence[str], nested: bool
) -> TableRow:
    row = next(line.row for line in lines if line is not None)
    types = " / ".join(dict.fromkeys(line.row.class_name for line in lines if line is not None))
    title = "" if row.kind == "function" else row.var_name if nested else row.path
    cells = [Cell(change, MARKS[change])]
    for (entry, line), name in product(zip(entries, lines), names):
        if line is None:
            cells.append(Cell(None, ""))
            continue
        if COLUMNS[name].unit in WORK:
            line = replace(line, mult_adds=per_sample(line.mult_adds, entry.report))
        cells.append(replace(COLUMNS[name].cell(line, entry.report, "--" if nested else "0"), data=None))
    return TableRow(f"{title} ({types})" if title else types, row.path, row.depth if nested else 0, tuple(cells))
