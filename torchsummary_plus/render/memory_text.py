"""An estimate of a step's memory -> text, as it stands under the table and by itself."""

from __future__ import annotations

from ..memory.estimate import Estimate
from ..units import mebibytes

HOLDERS = 3
"""How many of the modules that hold most of the peak are named."""


def estimate_text(estimate: Estimate, width: int = 64) -> str:
    """What the step takes, by kind, and where its peak is; between two rules, without a newline at the end."""
    kinds = [f"{kind.replace('_', ' ').capitalize()} (MB): {mebibytes(n)}" for kind, n in estimate.at_peak.items() if n]
    low, high = estimate.device_bytes
    on_device = f"On the device, with the context (MB): {mebibytes(low)} to {mebibytes(high)}"
    lines = [
        _title(estimate),
        "-" * width,
        *kinds,
        f"Peak allocated (MB): {mebibytes(estimate.peak_bytes)}, in the {_place(estimate)}",
        f"Peak reserved (MB): {mebibytes(estimate.reserved_bytes)}",
        *([on_device] if high > estimate.reserved_bytes else []),
        f"Between steps (MB): {mebibytes(estimate.steady_bytes)}",
        f"Held at the peak by: {_holders(estimate)}",
    ]
    if estimate.unknown:
        names = ", ".join(f"{name} x {count:,}" for name, count in estimate.unknown)
        lines.append(f"Scratch memory not confirmed: {names}")
    return "\n".join([*lines, "-" * width])


def _title(estimate: Estimate) -> str:
    info = estimate.info
    step = "Training step" if info.mode == "train" else "Inference step"
    parts = [step, f"batch of {info.batch_size:,}", info.gpu or info.device, info.optimizer]
    if info.autocast:
        parts.append(f"autocast to {info.autocast}")
    return ", ".join(part for part in parts if part)


def _place(estimate: Estimate) -> str:
    operator = estimate.peak_operator.partition("::")[2] or estimate.peak_operator
    where = estimate.peak_location
    return estimate.peak_phase + (f" of {where}" if where else "") + (f" ({operator})" if operator else "")


def _holders(estimate: Estimate) -> str:
    root, *inner = estimate.by_module
    held = [(module.path, module.own_bytes) for module in inner]
    held += [("the root", root.own_bytes - estimate.outside_bytes), ("no module", estimate.outside_bytes)]
    largest = sorted(held, key=lambda one: -one[1])[:HOLDERS]
    return ", ".join(f"{name} {mebibytes(nbytes)}" for name, nbytes in largest if nbytes)
