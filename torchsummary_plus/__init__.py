"""Model summaries for PyTorch, and the peak memory of a step, predicted without a GPU."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .data.collection import no_collection as _no_collection

if TYPE_CHECKING:
    from .api.compare import compare as compare
    from .api.configured import from_config as from_config
    from .api.explain import explain as explain
    from .api.explain import explain_batch as explain_batch
    from .api.generation import ContextLimit as ContextLimit
    from .api.generation import max_context as max_context
    from .api.graph import graph as graph
    from .api.loops import FirstStep as FirstStep
    from .api.loops import lightning_callback as lightning_callback
    from .api.loops import trainer_callback as trainer_callback
    from .api.memory import estimate_memory as estimate_memory
    from .api.memory import max_batch_size as max_batch_size
    from .api.memory import measure_memory as measure_memory
    from .api.step_options import StepOptions as StepOptions
    from .api.table import summary as summary
    from .api.table import summary_string as summary_string
    from .api.time import estimate_time as estimate_time
    from .api.tracker import MemTracker as MemTracker
    from .api.weights import weights as weights
    from .api.what_if import what_if as what_if
    from .data.errors import ForwardError as ForwardError
    from .data.errors import InputError as InputError
    from .data.errors import MissingExtraError as MissingExtraError
    from .data.errors import StepError as StepError
    from .data.errors import SummaryError as SummaryError
    from .data.errors import UnsupportedError as UnsupportedError
    from .memory.capacity import BatchSizeLimit as BatchSizeLimit
    from .memory.other_devices import NotModelledWarning as NotModelledWarning
    from .ops.macs import register_mult_adds as register_mult_adds
    from .ops.scratch.registry import register_scratch as register_scratch
    from .ops.traffic import register_kernels as register_kernels
    from .results.comparison import Comparison as Comparison
    from .results.memory_estimate import MemoryEstimate as MemoryEstimate
    from .results.model_graph import ModelGraph as ModelGraph
    from .results.model_summary import ModelSummary as ModelSummary
    from .results.step_comparison import StepComparison as StepComparison
    from .results.track_report import TrackReport as TrackReport
    from .results.weights_file import WeightsFile as WeightsFile
    from .results.what_if import WhatIf as WhatIf
    from .table.columns import register_column as register_column
    from .timing.step_time import StepTime as StepTime

__version__ = "0.1.0"

_HOMES = {
    "BatchSizeLimit": "memory.capacity",
    "Comparison": "results.comparison",
    "ContextLimit": "api.generation",
    "FirstStep": "api.loops",
    "ForwardError": "data.errors",
    "InputError": "data.errors",
    "MemTracker": "api.tracker",
    "MemoryEstimate": "results.memory_estimate",
    "MissingExtraError": "data.errors",
    "ModelGraph": "results.model_graph",
    "ModelSummary": "results.model_summary",
    "NotModelledWarning": "memory.other_devices",
    "StepComparison": "results.step_comparison",
    "StepError": "data.errors",
    "StepOptions": "api.step_options",
    "StepTime": "timing.step_time",
    "SummaryError": "data.errors",
    "TrackReport": "results.track_report",
    "UnsupportedError": "data.errors",
    "WeightsFile": "results.weights_file",
    "WhatIf": "results.what_if",
    "compare": "api.compare",
    "estimate_memory": "api.memory",
    "estimate_time": "api.time",
    "explain": "api.explain",
    "explain_batch": "api.explain",
    "from_config": "api.configured",
    "graph": "api.graph",
    "lightning_callback": "api.loops",
    "max_batch_size": "api.memory",
    "max_context": "api.generation",
    "measure_memory": "api.memory",
    "register_column": "table.columns",
    "register_kernels": "ops.traffic",
    "register_mult_adds": "ops.macs",
    "register_scratch": "ops.scratch.registry",
    "summary": "api.table",
    "summary_string": "api.table",
    "trainer_callback": "api.loops",
    "weights": "api.weights",
    "what_if": "api.what_if",
}
"""The module of each public name, imported on first use: importing the package adds little to `import torch`."""

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _no_collection():
        value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
