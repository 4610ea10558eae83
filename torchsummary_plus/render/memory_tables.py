"""A memory estimate -> its tables by kind and by module, and their sentences, independent of format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..data.answers import assumed, reasons
from ..data.errors import InputError, choice_error
from ..data.memory_records import ALL_KINDS, a_gpu
from ..data.units import common_unit, in_common_unit, in_unit
from ..formats.table import Cell, Field, Table, TableRow, cells
from ..memory.attribution import parents
from ..memory.estimate import Estimate, ModuleMemory
from ..memory.gpus import COMMON, find_gpu, parse_memory
from ..table.columns import check_layout

HOLDERS = 3  # How many of the modules that hold most of the peak are shown.

PHASES = {"optimizer": "optimizer's step", "end": "rest of the step, after the backward", "setup": "setup of the step"}
"""The phases whose names alone would not say what runs."""


def kind_label(kind: str) -> str:
    """Return the label of a kind of memory: "Saved activations" for "saved_activations"."""
    return kind.replace("_", " ").capitalize().replace("Kv ", "KV ")


def title(estimate: Estimate) -> str:
    """Return the description of the step: model, batch size, optimizer, dtypes, loss, device."""
    return str(estimate.info)


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
        return f"Fits: {_smallest(estimate)}"
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
    known = [(name, find_gpu(name).datasheet_gb) for name in COMMON]
    for number, (name, gb) in enumerate(known):
        if find_gpu(name).usable_bytes > estimate.peak_range[0] and estimate.fits(name):
            smaller = f"; {a_gpu(known[number - 1][0])} ({known[number - 1][1]} GB) is too small" if number else ""
            return f"{a_gpu(name)} ({gb} GB) or a larger GPU{smaller}"
    return f"no single GPU up to {known[-1][0]} ({known[-1][1]} GB); {in_common_unit(estimate.peak_bytes)} are needed"


def sentences(estimate: Estimate) -> Iterator[str]:
    """Yield what would help a step that doesn't fit, what nvidia-smi would show, and what is assumed."""
    if estimate.backend == "cuda" and estimate.info.gpu and (cure := estimate.fits().cure):
        yield f"{cure}."
    if estimate.backend == "cuda":
        yield _on_device(estimate)
    yield from assumed(estimate.assumptions, "details()")


def _on_device(estimate: Estimate) -> str:
    (low, high), of = estimate.device_bytes, "allocator cache and CUDA context"
    gpu, unit = estimate.info.gpu, common_unit(high)
    least, most = (f"{float(in_unit(nbytes, unit)[0]):.1f}" for nbytes in (low, high))
    if not gpu or high <= parse_memory(gpu):
        return f"nvidia-smi would show {least} to {most} {unit} ({of})."
    slow = "; here torch empties that cache during the step, which is slow" if estimate.fits() else ""
    return f"On a larger GPU nvidia-smi would show up to {most} {unit} ({of}){slow}."


def details_text(estimate: Estimate) -> str:
    """Return what the printed estimate leaves out: phases, layers, the allocator's figures, and every assumption."""
    unit = common_unit(estimate.peak_bytes)

    def sizes(*figures: int) -> str:
        return " to ".join(dict.fromkeys(in_unit(nbytes, unit)[0] for nbytes in figures)) + f" {unit}"

    phases = ", ".join(f"{phase} {sizes(nbytes)}" for phase, nbytes in estimate.phase_peaks.items())
    layers = ", ".join(f"{name} {sizes(nbytes)}" for name, nbytes in estimate.holders[:HOLDERS] if nbytes)
    operators = ", ".join(f"{name} ({count:,} calls)" for name, count in estimate.unknown)
    lines = [
        ("Peak, at least and at most", sizes(*estimate.peak_range)),
        ("Operator at the peak", estimate.peak_operator),
        ("Peak of each phase", phases),
        ("Held at the peak by", layers),
        ("Left after the step", sizes(estimate.steady_bytes)),
    ]
    if estimate.kv_cache_bytes:
        lines.append(("KV cache after the last token", sizes(estimate.kv_cache_bytes)))
    if estimate.backend == "cuda":
        reserved = f"{sizes(*estimate.reserved_range)} on a GPU with room to spare"
        lines.append(("torch.cuda.max_memory_reserved", reserved))
        lines.append(("With CUDA context, as nvidia-smi", sizes(*estimate.device_bytes)))
    if operators:
        lines.append(("Workspace estimated for", operators))
    width = max(len(label) for label, _ in lines)
    shown = [f"{label:<{width}}  {text}" for label, text in lines if text]
    return "\n".join([title(estimate), *shown, *(f"Assumed: {line}" for line in estimate.assumptions)])


BY_KIND = ("bytes", "percent")  # The columns of the table by kind, which has a row per kind of memory at the peak.


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
    """Return the table by kind, or the one by module if ``columns`` belong to it.

    Raises :class:`InputError` for an unknown column or depth, and for columns of both tables.
    """
    names = (columns,) if isinstance(columns, str) else tuple(BY_KIND if columns is None else columns)
    for name in names:
        if name not in BY_KIND and name not in MODULE_COLUMNS:
            raise choice_error("column", name, (*BY_KIND, *MODULE_COLUMNS))
    check_layout(style, depth)
    if set(names) <= set(BY_KIND):
        fields = tuple(map(_KIND_FIELDS.__getitem__, names))
        return _table(estimate, "Kind", fields, tuple(_kinds(estimate, fields)))
    if set(names) & set(BY_KIND):
        raise InputError(
            f"columns are {', '.join(names)}; {' and '.join(BY_KIND)} belong to the table by kind; choose "
            "columns of one table"
        )
    fields = tuple(Field(name, MODULE_COLUMNS[name][0], "bytes", scaled=True) for name in names)
    return _table(estimate, "Module", fields, tuple(_modules(estimate, fields, depth, style == "tree")))


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
    step, notes = title(estimate), tuple(sentences(estimate))
    return Table(
        step, "Kind", ANSWER, tuple(rows), (), notes, (step,), widest=WHOLE, answer=verdict(estimate), unit=unit
    )


WHOLE = 1000  # As the maximum of characters: sentences are not shortened.


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
    return TableRow(label, name, 0, (ANSWER[0].cell(nbytes), percent, Cell(words, words)))


def _table(estimate: Estimate, labels: str, fields: tuple[Field, ...], rows: tuple[TableRow, ...]) -> Table:
    step = title(estimate)
    return Table(
        step, labels, fields, rows, (), tuple(sentences(estimate)), (step,), answer=verdict(estimate),
        unit=common_unit(estimate.peak_bytes),
    )  # fmt: skip


_KIND_FIELDS = {"bytes": Field("bytes", "At the peak", "bytes", scaled=True), "percent": Field("percent", "%", "%")}


def _kinds(estimate: Estimate, fields: tuple[Field, ...]) -> Iterator[TableRow]:
    for kind, nbytes in sorted(estimate.at_peak.items(), key=lambda kind: -kind[1]):
        values = {"bytes": nbytes, "percent": 100 * nbytes / max(1, estimate.peak_bytes)}
        yield TableRow(kind_label(kind), kind, 0, cells(fields, (values[field.name] for field in fields)))


def _modules(estimate: Estimate, fields: tuple[Field, ...], depth: int | None, nested: bool) -> Iterator[TableRow]:
    """Yield a row per module; modules deeper than ``depth`` are folded into the row above, which preserves sums."""
    modules = estimate.by_module
    levels, home = [0], [0]
    for index, parent in enumerate(parents([module.path for module in modules])):
        if index:
            levels.append(levels[parent] + 1)
            home.append(home[parent] if depth is not None and levels[index] > depth else index)
    sums: dict[int, list[int]] = {}
    for index, module in enumerate(modules):
        own = [MODULE_COLUMNS[field.name][1](module) for field in fields]
        if home[index] == index:
            sums[index] = own
        else:
            above = sums[home[index]]
            above[:] = [a + b * (field.name != INCLUSIVE) for field, a, b in zip(fields, above, own)]
    for index, own in sums.items():
        path = modules[index].path
        label = (path.rsplit(".", 1)[-1] if nested else path) or "(root)"
        yield TableRow(label, path, levels[index] if nested else 0, cells(fields, own))
