"""What an interactive shell shows by itself: the value that a statement ends with, though the statement showed it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any
from weakref import ref

RUNNERS = ("run_code", "runcode")
"""Who runs a statement: IPython's shell, and the consoles made from the standard library's ``code``."""

STATEMENTS = ("<module>", "<cell line")
"""How the code of a statement is called; the second was IPython's way for a time."""


class _Shown:
    """What the present statement has shown. It holds the statement's code, no frame and no result."""

    def __init__(self) -> None:
        self.statement: CodeType | None = None
        self.results: list[ref[Any]] = []

    def add(self, result: object) -> None:
        statement = _statement()
        if statement is None:  # Another thread than the shell's.
            return
        kept = [one for one in self.results if one() is not None] if statement is self.statement else []
        self.statement, self.results = statement, [*kept, ref(result)]

    def has(self, result: object) -> bool:
        return any(one() is result for one in self.results) and _statement() is self.statement


_shown = _Shown()


def note_shown(result: object) -> None:
    """Keep in mind that the statement under way has shown a result, where a shell may show it again."""
    if hasattr(sys, "ps1"):
        _shown.add(result)


def is_echo(result: object) -> bool:
    """Whether a shell is about to show the value of a statement that showed it already.

    Python's own shell is written in C and asks for the text straight away; IPython's hook is found among the callers,
    so that a ``display`` in the statement is none.
    """
    if not _shown.has(result):
        return False
    shell = ipython()
    return shell is None or any(frame.f_locals.get("self") is shell.displayhook for frame in _callers())


def ipython() -> Any:
    """The IPython shell that this runs in, or None."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def takes_html() -> bool:
    """Whether this runs in a shell that passes HTML on: a notebook's does, one at a terminal does not."""
    shell = ipython()
    return shell is not None and "text/html" in shell.display_formatter.active_types


def _statement() -> CodeType | None:
    """The code of the statement that a shell runs now: the outermost one of a module below the shell's own."""
    found = None
    for frame in _callers():
        if frame.f_code.co_name in RUNNERS:
            break
        if frame.f_code.co_name.startswith(STATEMENTS):
            found = frame.f_code
    return found


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
