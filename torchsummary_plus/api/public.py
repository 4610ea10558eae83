"""Public calls: interrupts wait until nothing is half done, and errors show the caller's code and the model's alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import torch

from ..data.errors import SummaryError
from ..live.interrupts import signals_held

P = ParamSpec("P")
R = TypeVar("R")

LEFT_OUT = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), contextlib.__file__)
"""Where the code is whose frames tell a user nothing."""


def public(call: Callable[P, R]) -> Callable[P, R]:
    """Return a call whose errors leave out the frames of this package and of torch."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with signals_held():
                return call(*args, **kwargs)
        except SummaryError as error:
            failed = error
        cause: BaseException | None = failed
        while cause is not None:
            cause.__traceback__ = _of_users(cause.__traceback__)
            cause = cause.__cause__
        raise failed from failed.__cause__

    return called


def _of_users(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that tell a user nothing."""
    if trace is None:
        return None
    inner = _of_users(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(LEFT_OUT):
        return inner
    return TracebackType(inner, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
