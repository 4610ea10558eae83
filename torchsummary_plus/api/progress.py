"""A progress bar for work that takes over a second, if tqdm is installed and the output is interactive."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

SECONDS = 1.0
"""Seconds before a bar appears."""


@contextmanager
def progress_bar(title: str, unit: str, wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a function to call after each ``unit`` of work, with the name of the current task."""
    if not (wanted and _is_watched() and find_spec("tqdm")):
        yield lambda _: None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm's, in a notebook without widgets: it falls back to text.
        from tqdm.auto import tqdm
    with tqdm(desc=title, unit=f" {unit}", delay=SECONDS, leave=False) as bar:
        present = ""

        def advance(what: str) -> None:
            nonlocal present
            if what != present:
                present = what
                bar.set_postfix_str(what, refresh=False)
            bar.update()

        yield advance


def _is_watched() -> bool:
    """Return whether this runs in a notebook or at a terminal."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()
