"""The model summary that PyTorch users keep: the table everybody knows, with numbers that are right."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import summary as summary
    from .api import summary_string as summary_string
    from .compare_api import compare as compare
    from .comparison import Comparison as Comparison
    from .errors import ForwardError as ForwardError
    from .errors import InputError as InputError
    from .errors import MissingExtraError as MissingExtraError
    from .errors import StepError as StepError
    from .errors import SummaryError as SummaryError
    from .errors import UnsupportedError as UnsupportedError
    from .explaining import explain as explain
    from .explaining import explain_batch as explain_batch
    from .memory.capacity import BatchSizeLimit as BatchSizeLimit
    from .memory_api import estimate_memory as estimate_memory
    from .memory_api import max_batch_size as max_batch_size
    from .memory_api import measure_memory as measure_memory
    from .memory_estimate import MemoryEstimate as MemoryEstimate
    from .model_summary import ModelSummary as ModelSummary
    from .step_comparison import StepComparison as StepComparison
    from .tracing.macs import register_formula as register_formula
    from .track_report import TrackReport as TrackReport
    from .tracker import MemTracker as MemTracker

__version__ = "0.1.0"

_HOMES = {
    "BatchSizeLimit": "memory.capacity",
    "Comparison": "comparison",
    "ForwardError": "errors",
    "InputError": "errors",
    "MemTracker": "tracker",
    "MemoryEstimate": "memory_estimate",
    "MissingExtraError": "errors",
    "ModelSummary": "model_summary",
    "StepComparison": "step_comparison",
    "StepError": "errors",
    "SummaryError": "errors",
    "TrackReport": "track_report",
    "UnsupportedError": "errors",
    "compare": "compare_api",
    "estimate_memory": "memory_api",
    "explain": "explaining",
    "explain_batch": "explaining",
    "max_batch_size": "memory_api",
    "measure_memory": "memory_api",
    "register_formula": "tracing.macs",
    "summary": "api",
    "summary_string": "api",
}
"""The module each public name lives in, imported when the name is first asked for: `import torch` stays as it was."""

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
