"""The shell command: prints the result of a command, by default the table of a model, to stdout.

Exit codes: 0 for success; 1 if building or running the model failed; 2 for invalid arguments; 3 if a budget is
exceeded, or the step does not fit ``--gpu``.

Nothing here imports torch before a model is needed, so that help, lists and completions appear at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from ...data.errors import ForwardError, InputError, SummaryError
from .compare import compare_parser, comparison
from .fit import fit_parser, fitting
from .graph import drawing, graph_parser
from .lists import columns_parser, gpus_parser, list_of_columns, list_of_gpus
from .models import BuildError
from .options import Parser, say_commas, with_bare_memory
from .output import Answer, fail, plain_warnings, show
from .report import report_parser, reporting
from .table import table, table_parser

COMMANDS: dict[str, tuple[Callable[[], Parser], Callable[[argparse.Namespace], Answer]]] = {
    "": (table_parser, table),
    "compare": (compare_parser, comparison),
    "fit": (fit_parser, fitting),
    "graph": (graph_parser, drawing),
    "report": (report_parser, reporting),
    "gpus": (gpus_parser, list_of_gpus),
    "columns": (columns_parser, list_of_columns),
}
"""The parser and the function of each command, by name; without a name, the first word is a MODEL."""

OVER_BUDGET = 3

CURE_OF_EXIT = "; a file that is also a script runs its own part under if __name__ == '__main__':"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on ``argv`` (default: the command line) and return its exit code."""
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete

        complete({name: parser for name, (parser, _) in COMMANDS.items()})
    words = sys.argv[1:] if argv is None else list(argv)
    parser, run = COMMANDS[words.pop(0) if words and words[0] in COMMANDS else ""]
    arguments = parser().parse_intermixed_args(with_bare_memory(words))
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
