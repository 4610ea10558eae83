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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from ... import __version__
from ...data.arguments import CUDNN, PASS_MODES, RUNS, STEP_MODES, cure
from ...data.errors import ForwardError, InputError, LeftOutWarning, SummaryError, need_extra
from ...data.units import COUNT_UNITS, visible
from ...formats.text import printable
from ...memory.gpus import GPUS
from ...render.columns import COLUMNS
from ...table.columns import default_names
from ...table.lines import REPEATS, STYLES
from .commands import COMMANDS, WEIGHTS, BuildError

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
            text, over_budget = run(arguments)
    except SummaryError as error:
        sizes = getattr(arguments, "sizes", ())
        if isinstance(error, ForwardError) and len(sizes) > 1 and all(map(str.isdecimal, sizes)):  # Meant as one size?
            which = f"these are {len(sizes)} inputs of one axis each; the axes of one input are separated by commas"
            error.hint = f"{which}: {','.join(sizes)}"
        return fail(error, 2 if isinstance(error, InputError) else 1)
    except SystemExit as error:
        return fail(BuildError(f"the code of MODEL called sys.exit({error.code!r}){CURE_OF_EXIT}"), 1)
    return show(text) or (fail(over_budget, OVER_BUDGET) if over_budget else 0)


def fail(error: SummaryError | str, code: int) -> int:
    """Print an error or a warning to stderr and return the exit code."""
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
            fail(str(message), 0)
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
        if not command:
            others = [first.partition("\n")[0] for name, (_, _, first, _) in COMMANDS.items() if name]
            examples = "\n".join([examples, "\nother commands, each with its own --help:", *others])
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


MODEL_HELP = (
    "package.module:callable, path/to/file.py:callable, timm:NAME, OWNER/NAME on the Hugging Face Hub, "
    "or a folder with transformers' config.json"
)
SIZE_HELP = "an input's shape without the batch axis, one per input: 3,224,224; or by argument name: x=3,224,224"


def listed(word: str, one: bool = False) -> str | list[str]:
    """Split a comma-separated list; with ``one``, a single word stays one, to apply to all inputs."""
    words = [part.strip() for part in word.split(",")]
    return words[0] if one and len(words) == 1 else words


def count(word: str) -> int:
    """Parse a count, in units of K, M, G (or B) or T.

    >>> count("30M"), count("1.5g"), count("7B"), count("125_000")
    (30000000, 1500000000, 7000000000, 125000)
    """
    match = re.fullmatch(r"([\d_,]+(?:\.\d+)?)\s*([kmgbt]?)", word.strip(), re.IGNORECASE)
    if match is None or not re.search(r"\d", match[1]):
        raise argparse.ArgumentTypeError(f"{word!r} is not a count; accepted: a number such as 30M, 5G or 125000")
    return round(float(re.sub("[_,]", "", match[1])) * COUNT_UNITS[match[2].upper()])


def memory(word: str) -> int:
    """Parse an amount of memory in bytes, as ``--gpu`` does."""
    from ...memory.gpus import parse_memory

    try:
        return parse_memory(word)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _value(metavar: str | None, text: str, **more: Any) -> dict[str, Any]:
    return {"metavar": metavar, "help": text, **more}


def _number(text: str, **more: Any) -> dict[str, Any]:
    return _value("N", text, type=int, **more)


def _names(what: str, text: str, **more: Any) -> dict[str, Any]:
    return _value(f"{what}[,{what}...]", text, **{"type": listed, **more})


def _one_of(values: Iterable[str], text: str, between: str = ", ", **more: Any) -> dict[str, Any]:
    return {"metavar": None, "help": between.join(values) + text, "values": values, **more}


def _switch(text: str, **more: Any) -> dict[str, Any]:
    return {"action": "store_true", "help": text, **more}


Group = tuple[str, str, Mapping[str, Mapping[str, Any]]]
"""A group's title, the commands that have it, and its options: ``add_argument``'s settings by their names, and
``values``, which a shell completes."""


def groups() -> tuple[Group, ...]:
    """Return the options of all commands, in the order of their help; columns may be registered until then."""
    models, step = "table compare fit graph report", "memory estimate of a step"
    columns = f"any of {', '.join(COLUMNS)}; default: {','.join(default_names(False, False))}"
    dtypes = _names("DTYPE", "one dtype for all inputs, or one per input", type=lambda word: listed(word, one=True))
    saved, keeps = "also save to a file:", "same, the default, keeps the model's mode"
    return (
        ("", "table", {
            "--version": {"action": "version", "version": f"%(prog)s {__version__}"},
            "model": _value("MODEL", f"{MODEL_HELP}, or a {WEIGHTS} file"),
        }),
        ("", "fit graph report", {"model": _value("MODEL", MODEL_HELP)}),
        ("", "table fit graph report", {"sizes": _value("SIZE", SIZE_HELP, nargs="*", default=[])}),
        ("", "compare", {
            "words": _value("MODEL|SIZE", f"two or more models: {MODEL_HELP}; then {SIZE_HELP}", nargs="+"),
        }),
        ("", "gpus", {"word": _value("WORD", "only names with this in them", nargs="?", default="")}),
        ("", "table compare fit", {"-o --output": _value("FILE", f"{saved} .md, .tex, .csv, .json, .html, ...")}),
        ("", "graph", {"-o --output": _value("FILE", f"{saved} .svg, .dot, .mmd, .html, .json, ...")}),
        ("", "report", {"-o --output": _value("FILE", "default: report.html", default="report.html")}),
        ("model", models, {
            "--kwargs": _value(
                "KEY=VALUE", "keyword argument of the callable, a Python literal or plain text; can be repeated",
                action="append", default=[],
            ),
            "--meta": _switch('build the model on the "meta" device, without weights'),
        }),
        ("what to try", "fit", {
            "--gpus": _names("GPU", "GPUs by name; default: common ones from 8 to 80 GB", values=GPUS),
            "--settings": _names("NAME", "float32, bf16, fp16, 8-bit optimizer, ...; default: all"),
            "--batch-size": _number("samples of a step; default: 1", default=1),
            "--dtypes": dtypes,
        }),
        ("forward pass", "table compare graph report", {
            "--batch-size": _number("default: -1, any batch size", default=-1),
            "--device": _value(None, "cpu, cuda, cuda:1, ...; default: the model's"),
            "--dtypes": dtypes,
            "--mode": _one_of(PASS_MODES, f"; {keeps}", default="same"),
            "--run": _one_of(RUNS, "; fake needs only shapes, real computes", default="auto"),
        }),
        ("graph", "graph", {
            "--depth": _number("deepest level with nodes of its own; default: all"),
            "--repeats": _one_of(REPEATS, " equal neighbours; default: fold", " or ", default="fold"),
        }),
        ("table", "table compare", {
            "--style": _one_of(STYLES, "; default: torchsummary", default="torchsummary"),
            "--depth": _number("deepest level to show; default: all"),
            "--columns": _names("NAME", columns, dest="col_names", values=COLUMNS),
            "--functional": _switch("also show functional operations"),
        }),
        ("rows", "table", {
            "--rows": _names("WHICH", "show only a type (Conv2d), a path or pattern (layer1.*), or a range (0:20)"),
            "--repeats": _one_of(REPEATS, " equal neighbours; default: fold in nested text", " or "),
            "--col-width": _number("maximum length of a name or shape; default: 60"),
        }),
        (step, "table compare fit report", {
            "--memory": _value(
                "STEP", f"kind of step: {', '.join(STEP_MODES)}; train if no value follows", values=STEP_MODES,
            ),
            "--optimizer": _value("NAME", "a torch.optim optimizer, such as sgd, adam or adamw"),
            "--loss": _value("NAME", "such as cross_entropy, mse or causal_lm; default: the sum of the output"),
            "--autocast": _value("DTYPE", "run the forward under autocast: bfloat16, float16"),
            "--gradient-accumulation-steps": _number("micro-batches of --batch-size per update"),
            "--compiled": _switch("predict the step as torch.compile runs it", default=None),
            "--cudnn": _one_of(CUDNN, ": source of cuDNN's workspaces; default: auto", metavar="HOW"),
        }),
        (step, "table compare report", {
            "--gpu": _value(
                "MEMORY", 'GPU (torchsummary-plus gpus lists them) or memory to fit in: "RTX 4090", 24GiB; '
                "default device: cuda", values=GPUS,
            ),
        }),
        (step, "table", {
            "--max-batch": _switch("also find the largest batch that fits in --gpu"),
            "--time": _switch("also print how long the step takes on --gpu"),
            "--world-size": _number("number of ranks; MODEL builds and wraps the model"),
            "--rank": _number("the rank to estimate; default: 0", default=0),
        }),
        ("comparison", "compare", {
            "--names": _names("NAME", "names to show for the models"),
            "--ratios": _switch("also show ratios to the first model"),
            "--changes-only": _switch("hide layers that all models share"),
        }),
        ("budgets (the exit status is 3 if one is exceeded, or a step does not fit --gpu)", "table report", {
            "--max-params": _value("COUNT", "the most parameters: 30M, 7B, 125000", type=count),
            "--max-mult-adds": _value("COUNT", "the most multiply-adds per sample: 5G", type=count),
            "--max-memory": _value("MEMORY", "the highest peak of the step: 24GiB, 24GB", type=memory),
        }),
    )  # fmt: skip


def with_bare_memory(words: Sequence[str]) -> list[str]:
    """Return words in which ``--memory`` without a kind of step means a training step.

    >>> with_bare_memory(["m.py:net", "--memory", "3,32,32"]), with_bare_memory(["--memory", "eval"])
    (['m.py:net', '--memory=train', '3,32,32'], ['--memory', 'eval'])
    """
    following = [*words[1:], "-"]
    bare = (word == "--memory" and not after.isalpha() for word, after in zip(words, following))
    return [f"{word}=train" if alone else word for word, alone in zip(words, bare)]
