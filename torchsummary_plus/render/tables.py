"""Tables beside a model's own, independent of format: a step's memory and time, steps and models side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, product

from ..data.answers import assumed, caveats, reasons
from ..data.errors import InputError, choice_error
from ..data.memory_records import ALL_KINDS, StepInfo, a_gpu
from ..data.records import Group, Structure
from ..data.units import common_unit, in_common_unit, in_unit, structure_text
from ..formats.table import Cell, Field, Table, TableRow, Total, as_flops, cells, meant
from ..memory.attribution import parents
from ..memory.estimate import Estimate, ModuleMemory
from ..memory.gpus import COMMON, find_gpu, parse_memory
from ..table.columns import (
    GUESSES,
    check_layout,
    chosen_names,
    column_field,
    default_names,
    report_totals,
    unregistered_note,
    without_shape,
)
from ..table.lines import STYLES, Line
from ..table.rows import Report
from ..timing.step_time import StepTime, bound_by
from .columns import COLUMNS

HOLDERS = 3  # How many of the modules that hold most of the peak are shown.

PHASES = {"optimizer": "optimizer's step", "end": "rest of the step, after the backward", "setup": "setup of the step"}
"""The phases whose names alone would not say what runs."""


def kind_label(kind: str) -> str:
    """Return the label of a kind of memory: "Saved activations" for "saved_activations"."""
    return kind.replace("_", " ").capitalize().replace("Kv ", "KV ")


def place(estimate: Estimate) -> str:
    """Return the location of the peak: phase and module, or operator without one: "backward of layer4.2.relu"."""
    where, operator = estimate.peak_location, estimate.peak_operator.rpartition("::")[2]
    phase = PHASES.get(estimate.peak_phase, estimate.peak_phase)
    return f"{phase} of {where}" if where else f"{phase} ({operator})" if operator else phase


def verdict(estimate: Estimate) -> str:
    """Return the line that says whether a step fits its GPU, which common GPUs it fits, or what it needs on a CPU."""
    if estimate.backend != "cuda":
        return f"Needs: {in_common_unit(estimate.peak_bytes)} of main memory"
    if not estimate.info.gpu:
        return _smallest(estimate)
    fit = estimate.fits()
    if not fit:
        sizes = (in_common_unit(nbytes) for nbytes in (fit.needed_bytes, fit.usable_bytes))
        needs = ": it needs at least {}, and {} are usable".format(*sizes) if fit.left_bytes < 0 else ""
        return f"Fits: {fit.headroom}{needs}"
    percent = 100 * fit.needed_bytes / fit.usable_bytes
    share = f" ({percent:.0f} %)" if percent >= 1 else " (under 1 %)"
    if fit.needed_bytes < estimate.peak_bytes:
        return f"Fits: yes, if kernels do with less workspace: {fit.of_usable}{share}"
    if fit.most_bytes > fit.usable_bytes:
        return f"Fits: probably, {fit.of_usable}{share}, but it may take up to {in_common_unit(fit.most_bytes)}"
    return f"Fits: yes, {fit.of_usable}{share}"


def _smallest(estimate: Estimate) -> str:
    """Return the smallest common GPU that a step fits, and the next smaller one."""
    below = ""
    for name in COMMON:
        size = f"{find_gpu(name).datasheet_gb} GB"
        if find_gpu(name).usable_bytes > estimate.peak_range[0] and estimate.fits(name):
            return f"Fits: {a_gpu(name)} ({size}) or a larger GPU{below}"
        below = f"; {a_gpu(name)} ({size}) is too small"
    return f"Fits: no single GPU up to {name} ({size}); {in_common_unit(estimate.peak_bytes)} are needed"


def sentences(estimate: Estimate) -> Iterator[str]:
    """Yield what would help a step that doesn't fit, what nvidia-smi would show, and what is assumed."""
    if estimate.backend == "cuda" and estimate.info.gpu and (cure := estimate.fits().cure):
        yield f"{cure}."
    if estimate.backend == "cuda":
        low, high = estimate.device_bytes
        unit, of = common_unit(high), "allocator cache and CUDA context"
        least, most = (f"{float(in_unit(nbytes, unit)[0]):.1f}" for nbytes in (low, high))
        if not estimate.info.gpu or high <= parse_memory(estimate.info.gpu):
            yield f"nvidia-smi would show {least} to {most} {unit} ({of})."
        else:
            slow = "; here torch empties that cache during the step, which is slow" if estimate.fits() else ""
            yield f"On a larger GPU nvidia-smi would show up to {most} {unit} ({of}){slow}."
    yield from assumed(estimate.assumptions, "details()")


def details_text(estimate: Estimate) -> str:
    """Return what the printed estimate leaves out: phases, layers, the allocator's figures, and every assumption."""
    unit = common_unit(estimate.peak_bytes)

    def sizes(*figures: int) -> str:
        return " to ".join(dict.fromkeys(in_unit(nbytes, unit)[0] for nbytes in figures)) + f" {unit}"

    on_card, cache = estimate.backend == "cuda", estimate.kv_cache_bytes
    reserved = f"{sizes(*estimate.reserved_range)} on a GPU with room to spare" if on_card else ""
    lines = {
        "Peak, at least and at most": sizes(*estimate.peak_range),
        "Operator at the peak": estimate.peak_operator,
        "Peak of each phase": ", ".join(f"{phase} {sizes(nbytes)}" for phase, nbytes in estimate.phase_peaks.items()),
        "Held at the peak by": ", ".join(
            f"{name} {sizes(nbytes)}" for name, nbytes in estimate.holders[:HOLDERS] if nbytes
        ),
        "Left after the step": sizes(estimate.steady_bytes),
        "KV cache after the last token": sizes(cache) if cache else "",
        "torch.cuda.max_memory_reserved": reserved,
        "With CUDA context, as nvidia-smi": sizes(*estimate.device_bytes) if on_card else "",
        "Workspace estimated for": ", ".join(f"{name} ({count:,} calls)" for name, count in estimate.unknown),
    }
    width = max(len(label) for label, text in lines.items() if text)
    shown = [f"{label:<{width}}  {text}" for label, text in lines.items() if text]
    return "\n".join([str(estimate.info), *shown, *(f"Assumed: {line}" for line in estimate.assumptions)])


BY_KIND = {"bytes": Field("bytes", "At the peak", "bytes", scaled=True), "percent": Field("percent", "%", "%")}
"""The columns of the table by kind, which has a row per kind of memory at the peak."""


def _at_peak(kind: str) -> Callable[[ModuleMemory], int]:
    return lambda module: dict(module.at_peak).get(kind, 0)


INCLUSIVE = "peak_inclusive_bytes"  # The one column that includes submodules, so that folded rows add nothing to it.

MODULE_COLUMNS: dict[str, tuple[str, Callable[[ModuleMemory], int]]] = {
    "peak_own_bytes": ("Own at peak", lambda module: module.own_bytes),
    INCLUSIVE: ("Inclusive at peak", lambda module: module.inclusive_bytes),
    **{f"peak_{kind}_bytes": (f"{kind_label(kind)} at peak", _at_peak(kind)) for kind in ALL_KINDS},
    "output_bytes": ("Outputs", lambda module: module.own.output_bytes),
    "saved_bytes": ("Saved", lambda module: module.own.saved_bytes),
    "param_bytes": ("Parameters", lambda module: module.own.param_bytes),
    "grad_bytes": ("Gradients", lambda module: module.own.grad_bytes),
    "optimizer_bytes": ("Optimizer state", lambda module: module.own.optimizer_bytes),
}
"""The columns of the table by module: bytes at the peak by kind, and bytes over the whole step."""


def memory_table(
    estimate: Estimate, columns: Iterable[str] | None = None, depth: int | None = None, style: str = "torchsummary"
) -> Table:
    """Return the table by kind, or by module if ``columns`` belong to that. Raises :class:`InputError`."""
    names = (columns,) if isinstance(columns, str) else tuple(BY_KIND if columns is None else columns)
    for name in names:
        if name not in BY_KIND and name not in MODULE_COLUMNS:
            raise choice_error("column", name, (*BY_KIND, *MODULE_COLUMNS))
    check_layout(style, depth)
    by_kind = set(names) <= set(BY_KIND)
    if not by_kind and set(names) & set(BY_KIND):
        raise InputError(
            f"columns are {', '.join(names)}; {' and '.join(BY_KIND)} belong to the table by kind; choose "
            "columns of one table"
        )
    if by_kind:
        fields = tuple(BY_KIND[name] for name in names)
        rows = []
        for kind, nbytes in sorted(estimate.at_peak.items(), key=lambda kind: -kind[1]):
            values = {"bytes": nbytes, "percent": 100 * nbytes / max(1, estimate.peak_bytes)}
            rows.append(TableRow(kind_label(kind), kind, 0, cells(fields, (values[name] for name in names))))
    else:
        fields = tuple(Field(name, MODULE_COLUMNS[name][0], "bytes", scaled=True) for name in names)
        rows = list(_modules(estimate, fields, depth, style == "tree"))
    return _table(estimate, "Kind" if by_kind else "Module", fields, rows)


SMALL = 0.002  # Kinds below this share of the peak are folded into one row, if there are several.

ANSWER = (Field("bytes", "Size", "bytes", scaled=True), Field("percent", "Share", "%"), Field("words", ""))


def answer_table(estimate: Estimate) -> Table:
    """Return what a reader wants to know of a step, which every format for people shows.

    That is whether it fits, the kinds at the peak with their shares, largest first, the peak and the most that it may
    be, and at most two sentences. :func:`details_text` has the rest.
    """
    unit, (least, most) = common_unit(estimate.peak_bytes), estimate.peak_range
    why = reasons(estimate.unknown, estimate.assumptions) or "some sizes depend on data"
    rows = [*_largest_kinds(estimate), _row("Peak", "peak", estimate.peak_bytes, words=f"in the {place(estimate)}")]
    edges = [("At least", "at_least", least), ("At most", "at_most", most)]
    edges = [edge for edge in edges if in_unit(edge[2], unit) != in_unit(estimate.peak_bytes, unit)]
    rows += [_row(*edge, words=why if edge is edges[-1] else "") for edge in edges]
    return replace(_table(estimate, "Kind", ANSWER, rows), widest=1000)  # Sentences are not shortened.


def _table(estimate: Estimate, labels: str, fields: tuple[Field, ...], rows: Iterable[TableRow]) -> Table:
    step, notes, unit = str(estimate.info), tuple(sentences(estimate)), common_unit(estimate.peak_bytes)
    return Table(step, labels, fields, tuple(rows), (), notes, (step,), answer=verdict(estimate), unit=unit)


def _largest_kinds(estimate: Estimate) -> Iterator[TableRow]:
    """Yield the kinds at the peak, largest first, and one row of the small ones and those that are 0 there."""
    peak = max(1, estimate.peak_bytes)
    ranked = sorted(estimate.at_peak.items(), key=lambda kind: -kind[1])
    small = [(kind, nbytes) for kind, nbytes in ranked if 0 < nbytes < SMALL * peak]
    folded = small if len(small) > 1 else []
    own = estimate.by_module[0].inclusive  # Over the whole step, of the kinds that come and go in it.
    whole = {"gradients": own.grad_bytes, "optimizer_state": own.optimizer_bytes, "saved_activations": own.saved_bytes}
    for kind, nbytes in ranked:
        if nbytes and (kind, nbytes) not in folded:
            yield _row(kind_label(kind), kind, nbytes, nbytes / peak)
    absent = [(kind, 0) for kind in whole if whole[kind] and not estimate.at_peak.get(kind)]
    if folded or absent:
        total = sum(nbytes for _, nbytes in folded)
        names = []
        for kind, nbytes in folded + absent:
            few = "" if 2 * nbytes >= whole.get(kind, 0) else " (most not allocated at this peak)"
            words = few if nbytes else " (none at this peak)"
            names.append(kind.replace("_", " ").replace("kv", "KV") + words)
        yield _row("Other", "other", total, total / peak, ", ".join(names))


def _row(label: str, name: str, nbytes: int, share: float | None = None, words: str = "") -> TableRow:
    percent = Cell(None, "") if share is None else Cell(100 * share, f"{100 * share:.1f} %")
    return TableRow(label, name, 0, (ANSWER[0].cell(nbytes), percent, Cell(words, words)))


def _modules(estimate: Estimate, fields: tuple[Field, ...], depth: int | None, nested: bool) -> Iterator[TableRow]:
    """Yield a row per module; modules deeper than ``depth`` are folded into the row above, which preserves sums."""
    modules = estimate.by_module
    levels, home = list[int](), list[int]()
    sums: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(fields))
    for index, (module, parent) in enumerate(zip(modules, parents([module.path for module in modules]))):
        levels.append(levels[parent] + 1 if index else 0)
        home.append(home[parent] if depth is not None and levels[index] > depth else index)
        added = [index == home[index] or field.name != INCLUSIVE for field in fields]
        own = [MODULE_COLUMNS[field.name][1](module) * is_added for field, is_added in zip(fields, added)]
        sums[home[index]] = [a + b for a, b in zip(sums[home[index]], own)]
    for index, own in sums.items():
        path = modules[index].path
        label = (path.rsplit(".", 1)[-1] if nested else path) or "(root)"
        yield TableRow(label, path, levels[index] if nested else 0, cells(fields, own))


ON_DEVICE = "nvidia-smi shows what torch's allocator has reserved, in use or not, and the CUDA context."


def steps_table(names: Sequence[str], estimates: Sequence[Estimate], times: Sequence[float | None]) -> Table:
    """Return the table with a row per figure, a column per estimate, and the differences from the first."""
    fields = [Field(name, name, "count") for name in names]
    fields += [Field(f"{name}-{names[0]}", f"{name} - {names[0]}", "count") for name in names[1:]]
    places: dict[str, list[str]] = {}
    for name, estimate in zip(names, estimates, strict=True):
        places.setdefault(f"{estimate.info}; peak in the {place(estimate)}", []).append(name)
    notes = [f"{' and '.join(of)}: {words}" for words, of in places.items()]
    if any(estimate.backend == "cuda" for estimate in estimates):
        notes.append(ON_DEVICE)
    rows = []
    for field, values in _step_figures(estimates, times):
        first = values[0]
        differences = [None if value is None or first is None else value - first for value in values[1:]]
        rows.append(TableRow(field.heading, field.name, 0, tuple(map(field.cell, [*values, *differences])), field))
    unit = common_unit(max(estimate.peak_bytes for estimate in estimates))
    return Table(" / ".join(names), "Figure", tuple(fields), tuple(rows), notes=tuple(notes), unit=unit)


def _step_figures(
    estimates: Sequence[Estimate], times: Sequence[float | None]
) -> Iterator[tuple[Field, Sequence[float | None]]]:
    """Yield each figure with its value for each estimate."""
    on_card, every = any(estimate.backend == "cuda" for estimate in estimates), []
    kinds = [kind for kind in ALL_KINDS if any(estimate.at_peak.get(kind) for estimate in estimates)]
    phases = dict.fromkeys(phase for estimate in estimates for phase in estimate.phase_peaks)
    for step in estimates:
        own: dict[tuple[str, str], int | None] = {}
        own |= {(f"peak_{kind}_bytes", f"{kind_label(kind)} at the peak"): step.at_peak.get(kind, 0) for kind in kinds}
        own |= {("requested_bytes", "Requested at the peak"): step.requested_bytes} if on_card else {}
        own["peak_bytes", "Peak"] = step.peak_bytes
        own |= {(f"{phase}_peak_bytes", f"Peak of the {phase}"): step.phase_peaks.get(phase) for phase in phases}
        own["steady_bytes", "Left after the step"] = step.steady_bytes
        if on_card:
            own["reserved_bytes", "Reserved by the allocator"] = step.reserved_bytes
            own["cached_bytes", "Reserved, not in use at the peak"] = step.reserved_bytes - step.peak_bytes
            own["device_bytes_low", "nvidia-smi, at least"] = step.device_bytes[0]
            own["device_bytes_high", "nvidia-smi, at most"] = step.device_bytes[1]
        every.append(own)
    for name, label in every[0]:
        yield Field(name, label, "bytes", scaled=True), [own[name, label] for own in every]
    if any(seconds is not None for seconds in times):
        yield Field("time_ms", "Time (ms)", "ms"), [None if seconds is None else 1e3 * seconds for seconds in times]


_MODULE = (
    Field("own_ms", "Own ms", "ms", adds_up=True), Field("inclusive_ms", "Inclusive ms", "ms"),
    Field("percent", "% of the step", "%"), Field("bound", "Bound by", ""),
)  # fmt: skip
_KIND = (Field("ms", "ms", "ms", adds_up=True), Field("percent", "%", "%"))


def time_tables(time: StepTime) -> tuple[Table, ...]:
    """Return the table by module, with what limits each, and by kind of kernel unless the time was measured."""
    modules, kinds = [], []
    for module in time.by_module:
        own, inclusive, path = module.own_seconds, module.inclusive_seconds, module.path
        figures = cells(_MODULE, (1e3 * own, 1e3 * inclusive, 100 * inclusive / time.seconds))
        bound = _MODULE[3].cell(bound_by(module.memory_bound), "--")
        level = path.count(".") + 1 if path else 0
        modules.append(TableRow(path.rsplit(".", 1)[-1] or "(root)", path, level, (*figures, bound)))
    for kind, seconds in time.by_kind.items():
        figures = cells(_KIND, (1e3 * seconds, 100 * seconds / time.seconds))
        kinds.append(TableRow(kind.replace("_", " "), kind, 0, figures))
    by_module = Table("By module", "Module", _MODULE, tuple(modules), (), tuple(str(time).splitlines()))
    return (by_module, Table("By kind", "Kernels", _KIND, tuple(kinds))) if kinds else (by_module,)


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
        position = 0
        for name, total in own.items():
            if name not in fields:
                names.insert(position, name)
                fields[name] = total.field
            position = names.index(name) + 1
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
