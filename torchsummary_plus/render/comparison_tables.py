"""A comparison: its data, the table of its figures and that of its aligned layers, independent of format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, product

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

JOINED = {"Not counted": "in", "Steps": "of"}  # What joins the head of a note to the names that it is of.

FEW_MATCH = "Fewer than half of the layers match, so only totals are shown; layers=True shows the layers"

MARKS = {"same": "", "changed": "~", "removed": "-", "added": "+"}
"""The mark of a row of layers: the same in all, different, missing in some, missing in the first."""


ORIENTS = ("figures", "models")  # What the rows of the main table are.

PER_SAMPLE = " per sample"

WORK = ("mult-adds", "flops")  # Units of figures that are per sample.
FLOPS = Field("total_flops", f"FLOPs{PER_SAMPLE}", "flops")  # A figure that is shown only if it is chosen.


def figures_table(entries: Sequence[Entry], chosen: Iterable[str] | None, ratios: bool = False) -> Table:
    """Return the table with a row per figure, a column per entry and, if asked for, ratios to the first entry.

    None chooses all figures but the FLOPs and, beside peaks, torchsummary's guesses at them. Raises
    :class:`InputError` for an unknown figure.
    """
    first, *others = [entry.name for entry in entries]
    names = () if chosen is None else (chosen,) if isinstance(chosen, str) else tuple(chosen)
    fields = [Field(name, name, "count") for name in (first, *others)]
    if ratios:
        fields += [Field(f"{name}/{first}", f"{name} / {first}", "ratio") for name in others]
    figures = [{total.field.name: total for total in _figures(entry)} for entry in entries]
    rows = {field.name: _figure_row(field, figures, ratios) for field in _shared_order(figures)}
    known = {name: row for name, row in rows.items() if any(cell.value is not None for cell in row.cells)}
    for name in names:
        if not meant(name, known):
            raise choice_error("figure", name, known)
    hidden = {FLOPS.name, *(GUESSES if any(field.name in known for field in STEP_FIGURES) else ())}
    shown = [name for name in known if name not in hidden] if chosen is None else [meant(n, known) for n in names]
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


def _notes(entry: Entry) -> tuple[Iterable[str], ...]:
    """Return what an entry's figures leave out, the settings of its steps, and what their peaks assume."""
    report, peaks = entry.report, entry.peaks
    operators = ", ".join(f"{name} x {count:,}" for name, count in report.unknown_ops)
    notes = [f"Not counted: {what}" for what in (operators, without_shape(report)) if what]
    notes += [unregistered_note(report.unregistered)] if report.unregistered else []
    notes += [report.run.note] if report.run.note else []
    if peaks is None:
        return notes, (), ()
    limit = "" if peaks.max_batch_size is None else f"; largest batch in {peaks.gpu}"
    settings = f"Steps: batch {peaks.batch_size:,}, {peaks.info.settings}{limit}"
    return notes, [settings], caveats(peaks.unknown, peaks.assumptions)


def _figure_notes(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the notes of the entries, each once: with the names of its entries unless it is of all."""
    of: dict[str, list[str]] = {}
    for kind in zip(*map(_notes, entries)):
        for entry, lines in zip(entries, kind):
            for line in lines:
                of.setdefault(line, []).append(entry.name)
    for line, names in of.items():
        head, _, rest = line.partition(": ")
        if len(names) == len(entries):
            yield f"{line[0].upper()}{line[1:]}"
        elif head in JOINED:
            yield f"{head} {JOINED[head]} {', '.join(names)}: {rest}"
        else:
            yield f"In {', '.join(names)}: {line[0].lower()}{line[1:]}"


# Needleman and Wunsch's global alignment (1970) of layers, so that matching ones share a row.

GAP = 10  # The cost of an unmatched layer. Two layers share a row if that costs less than two gaps.

OTHER_TYPE = 14
"""The cost of a type swap: same outputs, both with or both without parameters (an activation replaced by another)."""

UNLIKE = 2 * GAP + 1  # The cost of any other difference in type: more than two gaps, so such layers never share a row.

OTHER_OUTPUTS, OTHER_INPUTS, OTHER_PARAMS, OTHER_DETAILS, OTHER_PATH = 4, 1, 2, 1, 1
"""The costs of differences within a type. Their sum is below one gap, so a changed layer is never read as inserted."""

FAR = 1 << 60  # More than the cost of any path.

BOTH, LEFT, RIGHT = range(3)
"""The steps of a path: a row with both layers, with the left one only, with the right one only."""

REACH, CELLS = 16, 1_000_000
"""How far from its diagonal a longer table is filled at least, and how many cells are (about half a second)."""

Pair = tuple["int | None", "int | None"]

Kind = tuple[str, str, str, int, str]


@dataclass(frozen=True, slots=True, order=True)
class ComparedLayer:
    """The properties that layers are compared by: type, shapes, parameters, kernel and groups; the path breaks ties."""

    type: str
    outputs: str
    inputs: str = ""
    num_params: int = 0
    details: str = ""
    path: str = ""

    @property
    def kind(self) -> Kind:
        """Everything but the path."""
        return self.type, self.outputs, self.inputs, self.num_params, self.details


def align(sequences: Sequence[Sequence[ComparedLayer]]) -> list[tuple[int | None, ...]]:
    """Return the rows of the alignment: for each sequence, the index of its layer, or None.

    Each layer is in one row, in the order of its sequence. Further sequences are aligned one by one with the first
    layer of each row so far. Between two shared rows, layers of earlier sequences come first.

    >>> relu, gelu = ComparedLayer("ReLU", "[8]"), ComparedLayer("GELU", "[8]")
    >>> fc = ComparedLayer("Linear", "[8]", num_params=72)
    >>> align([[fc, relu, fc], [fc, gelu, fc, fc]])
    [(0, 0), (1, 1), (2, 2), (None, 3)]
    """
    first, *others = sequences
    rows: list[tuple[int | None, ...]] = [(place,) for place in range(len(first))]
    left = list(first)
    for count, right in enumerate(others, 1):
        swapped = count == 1 and list(right) < left  # Ties break the same way in both directions.
        pairs = [(i, j) for j, i in _pairs(right, left)] if swapped else _pairs(left, right)
        shared = accumulate(None not in pair for pair in pairs)  # How many pairs up to this one are full.
        in_order = sorted(zip(shared, pairs), key=lambda item: (item[0], None in item[1], item[1][0] is None))
        rows = [(*((None,) * count if i is None else rows[i]), j) for _, (i, j) in in_order]
        left = [next(layers[at] for layers, at in zip(sequences, row) if at is not None) for row in rows]
    return rows


def _pairs(left: Sequence[ComparedLayer], right: Sequence[ComparedLayer]) -> list[Pair]:
    """Return the cheapest pairs; of long sequences, the cheapest that stay near the diagonal of the table of costs.

    Ties prefer a gap, so that additional repeats of a layer are added at the end.
    """
    n, m = len(left), len(right)
    reach = abs(n - m) + max(REACH, CELLS // (2 * n + 1))
    costs = cache(lambda kind: [_cost(kind, layer.kind) + OTHER_PATH for layer in right])
    paths = [layer.path for layer in right]
    above, moves = [j * GAP for j in range(m + 1)], [bytearray([RIGHT]) * (m + 1)]
    for i, layer in enumerate(left, 1):
        here, steps = [FAR] * (m + 1), bytearray([LEFT]) * (m + 1)
        here[0] = i * GAP
        own, path = costs(layer.kind), layer.path
        for j in range(max(1, i - reach), min(m, i + reach) + 1):
            best, step = above[j - 1] + own[j - 1] - OTHER_PATH * (paths[j - 1] == path), BOTH
            if above[j] + GAP <= best:
                best, step = above[j] + GAP, LEFT
            if here[j - 1] + GAP <= best:
                best, step = here[j - 1] + GAP, RIGHT
            here[j], steps[j] = best, step
        above = here
        moves.append(steps)
    i, j, pairs = n, m, list[Pair]()
    while i or j:
        step = moves[i][j]
        i, j = i - (step != RIGHT), j - (step != LEFT)
        pairs.append((None if step == RIGHT else i, None if step == LEFT else j))
    return pairs[::-1]


def _cost(a: Kind, b: Kind) -> int:
    (a_type, a_outputs, _, a_params, _), (b_type, b_outputs, _, b_params, _) = a, b
    if a_type != b_type:
        related = len(a_type) > 3 < len(b_type) and (a_type in b_type or b_type in a_type)  # Linear, QuantizedLinear
        alike = a_outputs == b_outputs and (related or bool(a_params) == bool(b_params))
        return OTHER_TYPE if alike else UNLIKE
    costs = (0, OTHER_OUTPUTS, OTHER_INPUTS, OTHER_PARAMS, OTHER_DETAILS)
    return sum(cost for cost, own, other in zip(costs, a, b) if own != other)


AlignedRow = tuple[tuple[Line, ComparedLayer] | None, ...]
"""For each entry, its line in a row of layers and the layer that this is compared by; None if it has none."""


def aligned_lines(entries: Sequence[Entry], style: str, depth: int | None) -> list[AlignedRow]:
    """Align the entries' lines in a style, with levels below ``depth`` folded."""
    differ = len({entry.report.run.batch_size for entry in entries}) > 1
    every = []
    for entry in entries:
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
    entries: Sequence[Entry], aligned: Sequence[AlignedRow], names: Sequence[str], nested: bool, changes_only: bool
) -> Table:
    """Return the table with a row per layer or group of matching layers, and the chosen columns for each entry."""
    rows, alike = [], 0
    for row in aligned:
        change = _change(row)
        alike += change == "same"
        if not (changes_only and change == "same"):
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
    if changes_only:
        notes.append(f"Identical in all, left out: {alike:,}")
    title = "Layers of " + ", ".join(entry.name for entry in entries)
    return Table(title, "Layer (type)", (Field("change", "Diff"), *fields), tuple(rows), notes=tuple(notes))


def shared_names(entries: Sequence[Entry], columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return each entry's columns; memory columns need all entries to have an estimate. Raises :class:`InputError`."""
    reports = [entry.report for entry in entries]
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
