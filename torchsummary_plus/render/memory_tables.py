"""Steps -> tables independent of format: the memory by kind and by module, estimates side by side, and the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..data.answers import assumed, reasons
from ..data.errors import InputError, choice_error
from ..data.memory_records import ALL_KINDS, a_gpu
from ..data.units import common_unit, in_common_unit, in_unit
from ..formats.table import Cell, Field, Table, TableRow, cells
from ..memory.attribution import parents
from ..memory.estimate import Estimate, ModuleMemory
from ..memory.gpus import COMMON, find_gpu, parse_memory
from ..table.columns import check_layout
from ..timing.step_time import StepTime, bound_by

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
    for label, name, nbytes, words in (("At least", "at_least", least, ""), ("At most", "at_most", most, why)):
        if in_unit(nbytes, unit) != in_unit(estimate.peak_bytes, unit):
            rows.append(_row(label, name, nbytes, words=words))
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
    for field, values in _figures(estimates, times):
        first = values[0]
        differences = [None if value is None or first is None else value - first for value in values[1:]]
        rows.append(TableRow(field.heading, field.name, 0, tuple(map(field.cell, [*values, *differences])), field))
    unit = common_unit(max(estimate.peak_bytes for estimate in estimates))
    return Table(" / ".join(names), "Figure", tuple(fields), tuple(rows), notes=tuple(notes), unit=unit)


def _figures(
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
