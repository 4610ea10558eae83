"""The sentences in the tables and pages of a memory estimate."""

from __future__ import annotations

from collections.abc import Iterator

from ..data.caveats import assumed
from ..data.step_words import a_gpu
from ..data.units import common_unit, in_common_unit, in_unit
from ..memory.estimate import Estimate
from ..memory.gpus import COMMON, find_gpu, parse_memory

HOLDERS = 3
"""How many of the modules that hold most of the peak are shown."""

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
