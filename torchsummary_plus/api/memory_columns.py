"""A step's memory per row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..data.errors import choice_error
from ..data.memory_records import RowMemory
from ..data.records import Trace
from ..memory.footprint import module_memory
from ..report.report import Row, row_memory
from ..results.memory_estimate import MemoryEstimate
from .habits import STEPS
from .memory import OPTIONS, estimate_memory
from .step_options import MODES


def memory_of(
    model: nn.Module,
    input_size: Any,
    given: Mapping[str, Any],
    memory: str | Mapping[str, Any],
    trace: Trace,
    rows: tuple[Row, ...],
) -> tuple[MemoryEstimate, tuple[RowMemory, ...]]:
    """Return the estimate for ``memory`` (a mode, or options that override ``given``), and each row's share of it."""
    estimate = estimate_memory(model, input_size, **{**given, **_options(memory)})
    return estimate, row_memory(trace, rows, estimate.by_call, module_memory(estimate.log))


def _options(memory: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return ``memory`` as options of :func:`estimate_memory`. Raises :class:`InputError` for an unknown option."""
    if not isinstance(memory, Mapping):
        if memory not in MODES:
            raise choice_error("memory", memory, [*MODES, "a dict of options of estimate_memory"])
        return {"mode": memory}
    accepted = [name for name in OPTIONS if name not in ("model", "input_size")]
    for name in memory:
        if name not in (*accepted, "amp", *STEPS):
            raise choice_error("memory option", name, accepted)
    return dict(memory)
