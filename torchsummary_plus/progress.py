"""A progress bar for what lasts over a second, by tqdm where it is installed; silent where nobody watches."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

SECONDS = 1.0
"""How long something lasts before a bar is shown."""


@contextmanager
def progress_bar(title: str, unit: str, wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """A function to call at each ``unit`` of work that is done, with what is under way."""
    if not (wanted and _is_watched() and find_spec("tqdm")):
        yield lambda _: None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm's, of a notebook without widgets: it draws with text then.
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
    """Whether this runs in a notebook or at a terminal."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()
