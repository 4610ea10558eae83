"""What all public calls share.

Interrupts wait until nothing is half done, errors show the caller's code and the model's alone, a model is a module, a
line says what a long call is doing, and a result is shown exactly once: as HTML in a notebook, as text elsewhere.
"""

from __future__ import annotations

import contextlib
import inspect
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..data.errors import InputError, SummaryError
from ..data.units import describe
from ..formats.text import printable
from ..live.isolation import signals_held
from ..results.views import Views, note_shown, takes_html

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


def check_model(model: object) -> nn.Module:
    """Return the module. Raises :class:`InputError` for anything else; for a class, the message suggests calling it."""
    if isinstance(model, nn.Module):
        return model
    if inspect.isclass(model) and issubclass(model, nn.Module):
        raise InputError(f"model is the class {model.__name__}, not an instance; call it: {model.__name__}(...)")
    if isinstance(model, Mapping) and any(isinstance(value, Tensor) for value in model.values()):
        raise InputError(f"model is a state dict of {len(model)} entries; load it into a model: load_state_dict(...)")
    what, cure = describe(model), ""
    if inspect.isroutine(model) and model.__name__.isidentifier():
        cure = f"; if the function builds the model, call it: {model.__name__}(...)"
    if isinstance(model, (list, tuple)):
        several = any(isinstance(value, nn.Module) for value in model)
        cure = "; for several models: compare(*models, ...)" if several else "; the model is the first argument"
    if isinstance(model, getattr(sys.modules.get("torch.export"), "ExportedProgram", ())):
        cure = "; of an exported program, pass program.module()"
    else:  # Such as a pipeline of diffusers or transformers.
        components = getattr(model, "components", None)
        held = {**getattr(model, "__dict__", {}), **(components if isinstance(components, Mapping) else {})}
        if modules := [str(name) for name, value in held.items() if isinstance(value, nn.Module)]:
            what, cure = f"a {type(model).__name__}", f"; pass one of its modules: {', '.join(modules)}"
    raise InputError(f"model is {what}; accepted: an instance of torch.nn.Module{cure}")


def show(result: Views) -> None:
    """Show a result now, and keep an interactive shell from echoing it again.

    Redirected output in a notebook is text.
    """
    kernels, is_html = sys.modules.get("ipykernel.iostream"), takes_html()
    if is_html and kernels is not None and isinstance(sys.stdout, kernels.OutStream):  # The kernel's own output.
        from IPython.display import display

        display(result)
    else:
        print(printable(result.to_terminal(sys.stdout), sys.stdout))
        if is_html:
            return
    note_shown(result)


SECONDS = 2.0  # Seconds before the line appears.


@contextmanager
def progress_line(wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with what is being done, again and again: the line shows the latest words."""
    is_notebook, is_terminal = takes_html(), sys.stderr is not None and sys.stderr.isatty()
    if not wanted or not (is_notebook or is_terminal):  # Nobody would see it.
        yield lambda _: None
        return
    show = _in_notebook if is_notebook else _at_terminal
    start, shown, place = monotonic(), "", None

    def tell(words: str) -> None:
        nonlocal shown, place
        if words != shown and monotonic() - start >= SECONDS:
            shown, place = words, show(words, place)

    try:
        yield tell
    finally:
        if shown:
            show("", place)


def _at_terminal(words: str, before: int | None) -> int:
    """Replace the line, which has ``before`` characters, or remove it for ""; return its length."""
    words = words[: shutil.get_terminal_size().columns - 1]
    print(f"\r{words:<{before or 0}}", end="" if words else "\r", file=sys.stderr, flush=True)
    return len(words)


def _in_notebook(words: str, handle: Any) -> Any:
    """Update an output of the cell, and return it: printed lines would stay, in red, and clearing remove others."""
    from IPython.display import display

    data = {"text/plain": words} if words else {}
    if handle is None:
        return display(data, raw=True, display_id=True)
    handle.update(data, raw=True)
    return handle
