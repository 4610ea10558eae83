"""The shell command: prints the result of a command, by default the table of a model, to stdout.

Exit codes: 0 for success; 1 if building or running the model failed; 2 for invalid arguments; 3 if a budget is
exceeded, or the step does not fit ``--gpu``.

Nothing here imports torch before a model is needed, so that help, lists and completions appear at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from ...data.arguments import cure
from ...data.errors import ForwardError, InputError, LeftOutWarning, SummaryError, need_extra
from ...data.units import visible
from ...formats.text import printable
from .commands import COMMANDS
from .models import BuildError
from .options import groups, with_bare_memory

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
        sizes = getattr(arguments, "sizes", ())
        if len(sizes) > 1 and all(map(str.isdecimal, sizes)):  # Probably meant as one size.
            which = f"these are {len(sizes)} inputs of one axis each; the axes of one input are separated by commas"
            error.hint = f"{which}: {','.join(sizes)}"
        return fail(error, 1)
    except SummaryError as error:
        return fail(error, 1)
    except SystemExit as error:
        return fail(BuildError(f"the code of MODEL called sys.exit({error.code!r}){CURE_OF_EXIT}"), 1)
    return show(answer.text) or (fail(answer.over_budget, OVER_BUDGET) if answer.over_budget else 0)


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


class Parser(argparse.ArgumentParser):
    """A command's parser, whose help begins with examples, and which names options similar to unknown ones.

    It fails if stdout cannot take its help.
    """

    def __init__(self, command: str, words: str, description: str, examples: str) -> None:
        prog = f"torchsummary-plus {command}".rstrip()
        super().__init__(
            prog=prog,
            usage=f"{prog} {words} [options]".replace("  ", " "),
            description=f"{description}\n\nexamples:\n" + re.sub("^(?=torch)", "  ", examples, flags=re.MULTILINE),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        by_title: dict[str, argparse._ActionsContainer] = {"": self}
        for title, commands, options in groups():
            if (command or "table") in commands.split():
                group = by_title.get(title) or by_title.setdefault(title, self.add_argument_group(title))
                for flags, settings in options.items():
                    own = {name: value for name, value in settings.items() if name != "values"}
                    action: Any = group.add_argument(*flags.split(), **own)
                    if "values" in settings:
                        action.completer = partial(completions, tuple(settings["values"]))  # argcomplete reads it.

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 after printing the usage and the error, with similar names for unknown options."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        unknown = (word for word in message.split() if word.startswith("--") and word not in known)
        super().error(message + "".join(cure(word, known, {}) for word in unknown))

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is not sys.stdout:
            super()._print_message(message, file)
        elif code := show(message.rstrip("\n")):
            self.exit(code)


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
    if not command:
        files = argcomplete.completers.FilesCompleter()
        model: Any = next(action for action in parser._actions if action.dest == "model")
        model.completer = lambda prefix, **_: [*filter(None, COMMANDS), *files(prefix)]
    argcomplete.autocomplete(parser)


def completions(names: Iterable[str], prefix: str, **_: object) -> list[str]:
    """Return the completions of the last name in a list with commas."""
    head, comma, _last = prefix.rpartition(",")
    return [f"{head}{comma}{name}" for name in names]
