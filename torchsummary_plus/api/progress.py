"""A line that says what a long call is doing, at a terminal or in a notebook; it is gone when the call returns."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from ..results.echo import takes_html

SECONDS = 2.0
"""Seconds before the line appears."""


@contextmanager
def progress_line(wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with what is being done, again and again: the line shows the latest words."""
    show = _line() if wanted else None
    if show is None:
        yield lambda _: None
        return
    start, shown = monotonic(), ""

    def tell(words: str) -> None:
        nonlocal shown
        if words != shown and monotonic() - start >= SECONDS:
            show(words)
            shown = words

    try:
        yield tell
    finally:
        if shown:
            show("")


def _line() -> Callable[[str], None] | None:
    """Return the function that replaces the line, and removes it for ""; None if nobody would see it."""
    if takes_html():
        return _in_notebook()
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return _at_terminal() if is_terminal else None


def _at_terminal() -> Callable[[str], None]:
    width = 0

    def show(words: str) -> None:
        nonlocal width
        words = words[: shutil.get_terminal_size().columns - 1]
        print(f"\r{words:<{width}}", end="" if words else "\r", file=sys.stderr, flush=True)
        width = len(words)

    return show


def _in_notebook() -> Callable[[str], None]:
    """Update one output of the cell. Printed lines would stay, in red, and clearing would remove other outputs too."""
    from IPython.display import display

    handle: Any = None

    def show(words: str) -> None:
        nonlocal handle
        data = {"text/plain": words} if words else {}
        if handle is None:
            handle = display(data, raw=True, display_id=True)
        else:
            handle.update(data, raw=True)

    return show
