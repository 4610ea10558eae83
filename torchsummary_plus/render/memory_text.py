"""An estimate of a step's memory -> text, as it stands under the table and by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..memory.estimate import Estimate
from ..units import in_unit, mebibytes

ASSUMPTIONS = 3
"""How many assumptions are told in full."""

HOLDERS = 3
"""How many of the modules that hold most of the peak are named."""


def estimate_text(estimate: Estimate, width: int = 64, units: str | None = None) -> str:
    """What the step takes, by kind, and where its peak is; between two rules, without a newline at the end.

    Without ``units`` bytes are shown in those of 1024 x 1024 that torchsummary calls MB.
    """

    lines = [
        title(estimate),
        "-" * width,
        *(_line(kind_label(kind), [nbytes], units) for kind, nbytes in estimate.at_peak.items() if nbytes),
        f"{_line('Peak allocated', [estimate.peak_bytes], units)}, in the {place(estimate)}",
        *_error_line(estimate, units),
        _line("Peak reserved", [estimate.reserved_bytes], units),
    ]
    if estimate.device_bytes[1] > estimate.reserved_bytes:
        lines.append(_line("On the device, with the context", estimate.device_bytes, units))
    lines.append(_line("Between steps", [estimate.steady_bytes], units))
    lines.append(f"Held at the peak by: {holders(estimate, units)}")
    if estimate.unknown:
        lines.append(not_confirmed(estimate))
    lines += assumed(estimate.assumptions)
    return "\n".join([*lines, "-" * width])


def _error_line(estimate: Estimate, units: str | None) -> list[str]:
    low, high = estimate.peak_range
    return [_line("Peak within the error bands of the rules", (low, high), units)] if low < high else []


def _line(label: str, sizes: Iterable[int], units: str | None) -> str:
    """One size, or a range of them, behind a label that names the unit unless each figure has its own."""
    figures = (in_unit(nbytes, units or "MiB") for nbytes in sizes)
    if units == "auto":
        return f"{label}: {' to '.join(map(' '.join, figures))}"
    return f"{label} ({units or 'MB'}): {' to '.join(figure for figure, _ in figures)}"


def kind_label(kind: str) -> str:
    return kind.replace("_", " ").capitalize()


def title(estimate: Estimate) -> str:
    """The step in words: its mode, batch, numbers, device and card, optimizer, loss."""
    return str(estimate.info)


def place(estimate: Estimate) -> str:
    """Where the peak is: the phase, the module, the operator."""
    operator = estimate.peak_operator.partition("::")[2] or estimate.peak_operator
    where = estimate.peak_location
    return estimate.peak_phase + (f" of {where}" if where else "") + (f" ({operator})" if operator else "")


def not_confirmed(estimate: Estimate) -> str:
    """The operators whose scratch memory no rule models, in a sentence."""
    return "Scratch memory not confirmed: " + ", ".join(f"{name} x {count:,}" for name, count in estimate.unknown)


def assumed(assumptions: Sequence[str]) -> list[str]:
    """What was assumed, a line for each of the first few."""
    left = len(assumptions) - ASSUMPTIONS
    lines = [f"Assumed: {one}" for one in assumptions[:ASSUMPTIONS]]
    return [*lines, f"Assumed: {left:,} more, in assumptions"] if left > 0 else lines


def holders(estimate: Estimate, units: str | None = None) -> str:
    """The modules that hold most of the peak, with what they hold."""
    root, *inner = estimate.by_module
    held = [(module.path, module.own_bytes) for module in inner]
    held += [("the root", root.own_bytes - estimate.outside_bytes), ("no module", estimate.outside_bytes)]
    largest = sorted(held, key=lambda one: -one[1])[:HOLDERS]
    return ", ".join(f"{name} {_figure(nbytes, units)}" for name, nbytes in largest if nbytes)


def _figure(nbytes: int, units: str | None) -> str:
    """Bytes with their unit; without it where the text is in MB throughout."""
    return mebibytes(nbytes) if units is None else " ".join(in_unit(nbytes, units))
