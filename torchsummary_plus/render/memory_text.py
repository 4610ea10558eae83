"""The sentences in the tables and pages of a memory estimate."""

from __future__ import annotations

from ..data.units import in_unit, mebibytes
from ..memory.estimate import Estimate

HOLDERS = 3
"""How many of the modules that hold most of the peak are shown."""


def kind_label(kind: str) -> str:
    """Return the label of a kind of memory: "Saved activations" for "saved_activations"."""
    return kind.replace("_", " ").capitalize().replace("Kv ", "KV ")


def title(estimate: Estimate) -> str:
    """Return the description of the step: mode, batch size, dtypes, device, GPU, optimizer, loss."""
    return str(estimate.info)


def place(estimate: Estimate) -> str:
    """Return the location of the peak: phase, module and operator."""
    operator = estimate.peak_operator.partition("::")[2] or estimate.peak_operator
    where = estimate.peak_location
    return estimate.peak_phase + (f" of {where}" if where else "") + (f" ({operator})" if operator else "")


def holders(estimate: Estimate, units: str | None = None) -> str:
    """Return the modules that hold most of the peak, with their bytes."""
    largest = estimate.holders[:HOLDERS]
    return ", ".join(f"{name} {_figure(nbytes, units)}" for name, nbytes in largest if nbytes)


def _figure(nbytes: int, units: str | None) -> str:
    """Return bytes with their unit; without it if ``units`` is None and the whole text is in MB."""
    return mebibytes(nbytes) if units is None else " ".join(in_unit(nbytes, units))
