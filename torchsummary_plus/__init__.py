"""The model summary that PyTorch users keep: the table everybody knows, with numbers that are right."""

from .api import summary, summary_string
from .errors import ForwardError, InputError, SummaryError, UnsupportedError
from .model_summary import ModelSummary

__version__ = "0.1.0"

__all__ = [
    "ForwardError",
    "InputError",
    "ModelSummary",
    "SummaryError",
    "UnsupportedError",
    "summary",
    "summary_string",
]
