"""Model summaries for PyTorch, and the peak memory of a step, predicted without a GPU."""

import gc as _gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.compare import Comparison as Comparison
    from .api.compare import StepComparison as StepComparison
    from .api.compare import compare as compare
    from .api.configured import from_config as from_config
    from .api.explain import explain as explain
    from .api.explain import explain_batch as explain_batch
    from .api.loops import FirstStep as FirstStep
    from .api.loops import lightning_callback as lightning_callback
    from .api.loops import trainer_callback as trainer_callback
    from .api.memory import WhatIf as WhatIf
    from .api.memory import estimate_memory as estimate_memory
    from .api.memory import estimate_time as estimate_time
    from .api.memory import max_batch_size as max_batch_size
    from .api.memory import max_context as max_context
    from .api.memory import measure_memory as measure_memory
    from .api.memory import what_if as what_if
    from .api.step_request import StepOptions as StepOptions
    from .api.table import graph as graph
    from .api.table import summary as summary
    from .api.table import summary_string as summary_string
    from .api.tracker import MemTracker as MemTracker
    from .api.weights import WeightsFile as WeightsFile
    from .api.weights import weights as weights
    from .data.errors import ForwardError as ForwardError
    from .data.errors import InputError as InputError
    from .data.errors import MissingExtraError as MissingExtraError
    from .data.errors import StepError as StepError
    from .data.errors import SummaryError as SummaryError
    from .data.errors import UnsupportedError as UnsupportedError
    from .memory.capacity import BatchSizeLimit as BatchSizeLimit
    from .memory.capacity import ContextLimit as ContextLimit
    from .memory.gpus import NotModelledWarning as NotModelledWarning
    from .ops.macs import register_mult_adds as register_mult_adds
    from .ops.scratch.registry import register_scratch as register_scratch
    from .ops.traffic import register_kernels as register_kernels
    from .results.memory_estimate import MemoryEstimate as MemoryEstimate
    from .results.model_summary import ModelGraph as ModelGraph
    from .results.model_summary import ModelSummary as ModelSummary
    from .results.track_report import TrackReport as TrackReport
    from .table.columns import register_column as register_column
    from .timing.step_time import StepTime as StepTime

__version__ = "0.1.0"

_NAMES = {
    "api.compare": "Comparison StepComparison compare",
    "api.configured": "from_config",
    "api.explain": "explain explain_batch",
    "api.loops": "FirstStep lightning_callback trainer_callback",
    "api.memory": "WhatIf estimate_memory estimate_time max_batch_size max_context measure_memory what_if",
    "api.step_request": "StepOptions",
    "api.table": "graph summary summary_string",
    "api.tracker": "MemTracker",
    "api.weights": "WeightsFile weights",
    "data.errors": "ForwardError InputError MissingExtraError StepError SummaryError UnsupportedError",
    "memory.capacity": "BatchSizeLimit ContextLimit",
    "memory.gpus": "NotModelledWarning",
    "ops.macs": "register_mult_adds",
    "ops.scratch.registry": "register_scratch",
    "ops.traffic": "register_kernels",
    "results.memory_estimate": "MemoryEstimate",
    "results.model_summary": "ModelGraph ModelSummary",
    "results.track_report": "TrackReport",
    "table.columns": "register_column",
    "timing.step_time": "StepTime",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of each public name, imported on first use: importing the package adds little to `import torch`."""

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    was_on = _gc.isenabled()
    _gc.disable()  # As in ``live.isolation``, which imports too much for here.
    try:
        value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    finally:
        if was_on:
            _gc.enable()
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
