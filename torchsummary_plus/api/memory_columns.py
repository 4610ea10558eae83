"""A step's memory per row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..data.memory_records import RowMemory
from ..data.records import Trace
from ..live.inputs import Example
from ..live.modules import ModuleTree
from ..memory.footprint import module_memory
from ..report.report import Row, row_memory
from ..results.memory_estimate import MemoryEstimate
from .memory import fixed_example, predicted
from .step_options import StepOptions, step_keywords

INPUTS = ("batch_size", "dtypes", "input_data")
"""Options that set the step's inputs, by default those of the table's pass."""

WORLD = ("world_size", "rank", "ranks", "progress")
"""Options of :func:`estimate_memory` that concern neither the input nor the step."""


def memory_of(
    tree: ModuleTree,
    example: Example | None,
    inputs: Mapping[str, Any],
    memory: str | Mapping[str, Any] | StepOptions,
    device: Any,
    trace: Trace,
    rows: tuple[Row, ...],
) -> tuple[MemoryEstimate, tuple[RowMemory, ...]]:
    """Return the estimate for ``memory`` (a mode, or options of :func:`estimate_memory`), and each row's share of it.

    ``example`` was built from ``inputs``, which the options may override; ``device`` is the table's.
    """
    asked = {"device": device, **step_keywords(memory, also=(*INPUTS, *WORLD))}
    if asked.keys() & set(INPUTS):
        example = fixed_example(**{**inputs, **{name: asked.pop(name) for name in INPUTS if name in asked}})
    world = {name: asked.pop(name) for name in WORLD if name in asked}
    model = tree if world.get("world_size") is None else tree.modules[0]
    estimate = predicted(model, example, StepOptions(**asked), **world)
    return estimate, row_memory(trace, rows, estimate.by_call, module_memory(estimate.log))
