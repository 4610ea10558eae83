"""Detect an interactive shell's echo of a value that the statement has already shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any
from weakref import ref

RUNNERS = ("run_code", "runcode")
"""The functions that run a statement: IPython's, and that of consoles built on the standard library's ``code``."""

STATEMENTS = ("<module>", "<cell line")
"""Names of a statement's code object; older versions of IPython used the second."""


class _Shown:
    """What the current statement has shown. It keeps the statement's code alive, but no frame and no result."""

    def __init__(self) -> None:
        self.statement: CodeType | None = None
        self.results: list[ref[Any]] = []

    def add(self, result: object) -> None:
        statement = _statement()
        if statement is None:  # Not the shell's thread.
            return
        others = [other for other in self.results if other() is not None] if statement is self.statement else []
        self.statement, self.results = statement, [*others, ref(result)]

    def has(self, result: object) -> bool:
        return any(other() is result for other in self.results) and _statement() is self.statement


_shown = _Shown()


def note_shown(result: object) -> None:
    """Record that the current statement has shown a result, if a shell may show it again."""
    if hasattr(sys, "ps1"):
        _shown.add(result)


def is_echo(result: object) -> bool:
    """Return whether a shell is about to repeat a result that the statement has already shown.

    Python's own shell is written in C and asks for the text directly; IPython's display hook must be among the callers,
    so an explicit ``display`` does not count as an echo.
    """
    if not _shown.has(result):
        return False
    shell = ipython()
    return shell is None or any(frame.f_locals.get("self") is shell.displayhook for frame in _callers())


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
    for frame in _callers():
        if frame.f_code.co_name in RUNNERS:
            break
        if frame.f_code.co_name.startswith(STATEMENTS):
            code = frame.f_code
    return code


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
