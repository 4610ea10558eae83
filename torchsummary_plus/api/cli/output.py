"""How the shell commands print a result or an error."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from ...data.errors import InputError, SummaryError
from ...data.units import visible
from ...data.warned import LeftOutWarning
from ...formats.printing import printable


def fail(error: SummaryError, code: int) -> int:
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
