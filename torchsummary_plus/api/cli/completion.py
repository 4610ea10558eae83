"""Completions of the shell command, by argcomplete."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...data.choices import CUDNN, PASS_MODES, RUNS, STEP_MODES
from ...data.extras import need_extra
from ...memory.gpus import GPUS
from ...render.columns import COLUMNS
from ...table.chosen import REPEATS
from ...table.lines import STYLES
from .options import Parser

VALUES: dict[str, Iterable[str]] = {
    "columns": COLUMNS,
    "cudnn": CUDNN,
    "gpu": GPUS,
    "gpus": GPUS,
    "memory": STEP_MODES,
    "mode": PASS_MODES,
    "repeats": REPEATS,
    "run": RUNS,
    "style": STYLES,
}
"""The accepted values of options, by the option's name."""


def complete(parsers: Mapping[str, Callable[[], Parser]]) -> None:
    """Answer a shell that asks what may come next on its command line, and exit.

    ``parsers`` has the parser of each command; that of the command without a name is under "". Raises
    :class:`MissingExtraError` without argcomplete.
    """
    argcomplete = need_extra("argcomplete", "completion")
    before = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    place = int(os.environ["_ARGCOMPLETE"])  # Of the first word after the program, which may be "python -m ...".
    finished = re.split(r"\s+", before)[place:-1]
    command = finished[0] if finished and finished[0] in parsers else ""
    if command:
        os.environ["_ARGCOMPLETE"] = str(place + 1)
    parser = parsers[command]()
    for action in parser._actions:
        completer: Any = None
        if action.dest in VALUES:
            completer = _listed(VALUES[action.dest])
        elif action.dest == "model" and not command:
            completer = _listed(filter(None, parsers), argcomplete.completers.FilesCompleter())
        if completer is not None:
            action.completer = completer  # type: ignore[attr-defined]  # argcomplete reads it.
    argcomplete.autocomplete(parser)


def _listed(names: Iterable[str], *more: Callable[[str], Iterable[str]]) -> Callable[..., list[str]]:
    """Return a completer of the last name in a list with commas."""
    known = tuple(names)

    def completer(prefix: str, **_: object) -> list[str]:
        head, comma, _last = prefix.rpartition(",")
        return [f"{head}{comma}{name}" for name in known] + [name for others in more for name in others(prefix)]

    return completer
