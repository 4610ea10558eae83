"""A step's memory per row of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from torch import nn

from ..data.errors import InputError, choice_error
from ..data.memory_records import RowMemory
from ..data.records import Trace
from ..memory.footprint import module_memory
from ..report.report import Row, row_memory
from ..results.memory_estimate import MemoryEstimate
from .memory import estimate_memory
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
    options = _options(memory)
    build = options.pop("build", None)
    if (build is None) != (options.get("world_size") is None):
        raise InputError("memory has one of world_size and build; accepted: both, with build the builder of the model")
    estimate = estimate_memory(model if build is None else build, input_size, **{**given, **options})
    calls: Sequence[tuple[str, RowMemory]] = estimate.by_call
    held: Mapping[str, RowMemory] = module_memory(estimate.log)
    if build is not None:
        calls, held = _unwrapped({module.path for module in trace.modules}, calls, held)
    return estimate, row_memory(trace, rows, calls, held)


_WRAPPERS = ("_checkpoint_wrapped_module", "module")
"""The names that wrappers have for what is inside: those of ``checkpoint_wrapper`` and ``DistributedDataParallel``."""


def _unwrapped(
    known: set[str], calls: Sequence[tuple[str, RowMemory]], held: Mapping[str, RowMemory]
) -> tuple[Sequence[tuple[str, RowMemory]], Mapping[str, RowMemory]]:
    """What the modules of a wrapped model take, by the paths that they have in the model itself."""

    def plain(path: str) -> str:
        parts = path.split(".")
        return path if path in known else ".".join(part for part in parts if part not in _WRAPPERS)

    def wraps(path: str) -> bool:
        inside = [f"{path}.{name}".lstrip(".") for name in _WRAPPERS]
        return any(one in held and one not in known for one in inside)

    summed: dict[str, RowMemory] = {}
    for path, memory in held.items():
        summed[plain(path)] = summed.get(plain(path), RowMemory()) + memory
    return [(plain(path), memory) for path, memory in calls if not wraps(path)], summed


def _options(memory: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return ``memory`` as options of :func:`estimate_memory`. Raises :class:`InputError` for an unknown option."""
    if not isinstance(memory, Mapping):
        if memory not in MODES:
            raise choice_error("memory", memory, [*MODES, "a dict of options of estimate_memory"])
        return {"mode": memory}
    own = [name for name in signature(estimate_memory).parameters if name not in ("model", "input_size")]
    accepted = [*own, "build"]
    for name in memory:
        if name not in accepted:
            raise choice_error("memory option", name, accepted)
    return dict(memory)
