"""Detect an interactive shell's echo of a value that the statement has already shown."""

from __future__ import annotations

import sys
from traceback import walk_stack
from types import CodeType
from typing import Any
from weakref import ref

RUNNERS = ("run_code", "runcode")
"""The functions that run a statement: IPython's, and that of consoles built on the standard library's ``code``."""

STATEMENTS = ("<module>", "<cell line")
"""Names of a statement's code object; older versions of IPython used the second."""


_shown: tuple[CodeType | None, list[ref[Any]]] = None, []
"""The current statement, and what it has shown: this keeps the statement's code alive, but no frame and no result."""


def note_shown(result: object) -> None:
    """Record that the current statement has shown a result, if a shell may show it again."""
    global _shown
    statement = _statement() if hasattr(sys, "ps1") else None
    if statement is not None:  # Else this is not the shell's thread.
        before, results = _shown
        others = [other for other in results if other() is not None] if statement is before else []
        _shown = statement, [*others, ref(result)]


def is_echo(result: object) -> bool:
    """Return whether a shell is about to repeat a result that the statement has already shown.

    Python's own shell is written in C and asks for the text directly; IPython's display hook must be among the callers,
    so an explicit ``display`` does not count as an echo.
    """
    statement, results = _shown
    if not any(other() is result for other in results) or _statement() is not statement:
        return False
    shell = ipython()
    return shell is None or any(
        frame.f_locals.get("self") is shell.displayhook for frame, _ in walk_stack(sys._getframe())
    )


def ipython() -> Any:
    """Return the current IPython shell, or None."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def takes_html() -> bool:
    """Return whether the current shell displays HTML: a notebook does, a terminal does not."""
    shell = ipython()
    return shell is not None and "text/html" in shell.display_formatter.active_types


def _statement() -> CodeType | None:
    """Return the code of the statement that a shell is running: the outermost module code below the shell's own."""
    code = None
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code.co_name in RUNNERS:
            break
        if frame.f_code.co_name.startswith(STATEMENTS):
            code = frame.f_code
    return code
