"""The shell command: prints the result of a command, by default the table of a model, to stdout.

Exit codes: 0 for success; 1 if building or running the model failed; 2 for invalid arguments; 3 if a budget is
exceeded, or the step does not fit ``--gpu``.

Nothing here imports torch before a model is needed, so that help, lists and completions appear at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...data.arguments import CUDNN, PASS_MODES, RUNS, STEP_MODES
from ...data.errors import ForwardError, InputError, SummaryError, need_extra
from ...memory.gpus import GPUS
from ...render.columns import COLUMNS
from ...table.chosen import REPEATS
from ...table.lines import STYLES
from .commands import COMMANDS
from .models import BuildError
from .options import Parser, say_commas, with_bare_memory
from .output import fail, plain_warnings, show

OVER_BUDGET = 3

CURE_OF_EXIT = "; a file that is also a script runs its own part under if __name__ == '__main__':"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on ``argv`` (default: the command line) and return its exit code."""
    if "_ARGCOMPLETE" in os.environ:
        complete()
    words = sys.argv[1:] if argv is None else list(argv)
    name = words.pop(0) if words and words[0] in COMMANDS else ""
    usage, about, examples, run = COMMANDS[name]
    arguments = Parser(name, usage, about, examples).parse_intermixed_args(with_bare_memory(words))
    arguments.stream = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr), plain_warnings():  # The model's own prints are not of the answer.
            answer = run(arguments)
    except InputError as error:
        return fail(error, 2)
    except ForwardError as error:
        say_commas(error, getattr(arguments, "sizes", ()))
        return fail(error, 1)
    except SummaryError as error:
        return fail(error, 1)
    except SystemExit as error:
        return fail(BuildError(f"the code of MODEL called sys.exit({error.code!r}){CURE_OF_EXIT}"), 1)
    return show(answer.text) or (fail(answer.over_budget, OVER_BUDGET) if answer.over_budget else 0)


VALUES: dict[str, Iterable[str]] = {
    "col_names": COLUMNS, "cudnn": CUDNN, "gpu": GPUS, "gpus": GPUS, "memory": STEP_MODES, "mode": PASS_MODES,
    "repeats": REPEATS, "run": RUNS, "style": STYLES,
}  # fmt: skip
"""The accepted values of options, by the option's name."""


def complete() -> None:
    """Answer a shell that asks what may come next on its command line, and exit.

    Raises :class:`MissingExtraError` without argcomplete.
    """
    argcomplete = need_extra("argcomplete", "completion")
    before = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    place = int(os.environ["_ARGCOMPLETE"])  # Of the first word after the program, which may be "python -m ...".
    finished = re.split(r"\s+", before)[place:-1]
    command = finished[0] if finished and finished[0] in COMMANDS else ""
    if command:
        os.environ["_ARGCOMPLETE"] = str(place + 1)
    parser = Parser(command, *COMMANDS[command][:3])
    for action in parser._actions:
        completer: Any = None
        if action.dest in VALUES:
            completer = _listed(VALUES[action.dest])
        elif action.dest == "model" and not command:
            completer = _listed(filter(None, COMMANDS), argcomplete.completers.FilesCompleter())
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
