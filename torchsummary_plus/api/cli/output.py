"""What the shell commands return, and how they print it or an error."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ...data.errors import InputError, LeftOutWarning, SummaryError
from ...data.units import visible
from ...formats.text import printable

if TYPE_CHECKING:
    from ...results.views import Views


class Answer(NamedTuple):
    """What a command prints, and the line on the budgets that are exceeded, "" if none is."""

    text: str
    over_budget: str = ""


def fail(error: SummaryError | str, code: int) -> int:
    """Print an error to stderr and return the exit code."""
    print(f"torchsummary-plus: {printable(visible(str(error)), sys.stderr)}", file=sys.stderr)
    return code


def show(text: str) -> int:
    """Print and return the exit code: 2 if stdout cannot be written, 0 if its reader has closed the pipe."""
    if sys.stdout is None:
        return fail(InputError("the output cannot be written: stdout is closed"), 2)
    try:
        print(printable(text, sys.stdout), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # So that the flush at exit does not fail.
        if not isinstance(error, BrokenPipeError):
            return fail(InputError(f"the output cannot be written: {error.strerror or error}"), 2)
    return 0


def saved(result: Views, path: str | None) -> list[str]:
    """Save a result if a path is given, and return a line that says so. Raises :class:`InputError`."""
    if path is None:
        return []
    with writable(path):
        return [f"Saved to {result.save(path)}"]


@contextlib.contextmanager
def writable(path: str) -> Iterator[None]:
    """Inside the block, raise :class:`InputError` if the file cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print this package's warnings as lines of the command, without a place in its code."""

    def show_warning(message: Warning | str, category: type[Warning], *where: Any, **others: Any) -> None:
        if issubclass(category, LeftOutWarning):
            print(f"torchsummary-plus: {printable(visible(str(message)), sys.stderr)}", file=sys.stderr)
        else:
            shown(message, category, *where, **others)

    with warnings.catch_warnings():
        shown, warnings.showwarning = warnings.showwarning, show_warning
        yield
