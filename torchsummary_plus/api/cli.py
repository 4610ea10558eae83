"""The shell command: prints the result of a command, by default the table of a model, to stdout.

Exit codes: 0 for success; 1 if building or running the model failed; 2 for invalid arguments; 3 if a budget is
exceeded, or the step does not fit ``--gpu``.

Nothing here imports torch before a model is needed, so that help, lists and completions appear at once. Each command is
a function from parsed arguments, which name the model, to the answer.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.util
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torchsummary_plus as package  # Which imports torch when a call is first used.

from ..data.arguments import CUDNN, PASS_MODES, RUNS, STEP_MODES, cure
from ..data.errors import ForwardError, InputError, LeftOutWarning, SummaryError, choice_error, need_extra
from ..data.units import COUNT_UNITS, GIB, describe, in_common_unit, visible
from ..data.untrusted_files import is_config
from ..formats.text import printable
from ..memory.gpus import GPUS, OTHERS, named_gpu, other_device, parse_memory
from ..render.columns import COLUMNS
from ..table.columns import default_names
from ..table.lines import REPEATS, STYLES
from ..table.rows import Report

if TYPE_CHECKING:
    from ..results.views import Views


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
        return fail(SummaryError(f"the code of MODEL called sys.exit({error.code!r}){CURE_OF_EXIT}"), 1)
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
    also, keeps = "also save to a file:", "same, the default, keeps the model's mode"
    return (
        ("", "table", {
            "--version": {"action": "version", "version": f"%(prog)s {package.__version__}"},
            "model": _value("MODEL", f"{MODEL_HELP}, or a {WEIGHTS} file"),
        }),
        ("", "fit graph report", {"model": _value("MODEL", MODEL_HELP)}),
        ("", "table fit graph report", {"sizes": _value("SIZE", SIZE_HELP, nargs="*", default=[])}),
        ("", "compare", {
            "words": _value("MODEL|SIZE", f"two or more models: {MODEL_HELP}; then {SIZE_HELP}", nargs="+"),
        }),
        ("", "gpus", {"word": _value("WORD", "only names with this in them", nargs="?", default="")}),
        ("", "table compare fit", {"-o --output": _value("FILE", f"{also} .md, .tex, .csv, .json, .html, ...")}),
        ("", "graph", {"-o --output": _value("FILE", f"{also} .svg, .dot, .mmd, .html, .json, ...")}),
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


EXAMPLES = """\
torchsummary-plus examples/vgg.py:vgg16 3,224,224
torchsummary-plus torchvision.models:resnet50 3,224,224 --kwargs num_classes=10
torchsummary-plus timm:resnet50 3,224,224 --style tree --depth 2  (a model of timm)
torchsummary-plus google-bert/bert-base-cased 128  (a model of the Hugging Face Hub: its config alone is read)
torchsummary-plus ./Llama-3.1-70B 4096 --style tree --depth 4  (a folder with config.json: no weights needed)
torchsummary-plus examples/llama.py:llama2_70b 4096 --meta --style tree --depth 2
torchsummary-plus my_models.py:TwoInputs 3,64,64 10 --dtypes float32,int64
torchsummary-plus examples/vgg.py:vgg16  (without a size: names and parameters only)
torchsummary-plus model.safetensors --depth 2  (tensors, from the header alone)
torchsummary-plus examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --gpu "RTX 4090"
torchsummary-plus examples/gpt2.py:GPT2 1024 --autocast bfloat16 --optimizer adamw --gpu "A100 40GB" --max-batch
torchsummary-plus examples/resnet.py:resnet18 3,224,224 --max-params 30M --max-mult-adds 5G  (exits with 3 if over)
torchsummary-plus train.py:build 8192 --world-size 64 --optimizer adamw --gpu H100  (build() wraps the model)"""

REPORT_EXAMPLES = """\
torchsummary-plus report examples/resnet.py:resnet50 3,224,224 -o resnet50.html
torchsummary-plus report examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --gpu "RTX 4090"
torchsummary-plus report google-bert/bert-base-cased 128 --optimizer adamw -o bert.html"""

COMPARE_EXAMPLES = """\
torchsummary-plus compare examples/vgg.py:vgg16 examples/vgg.py:vgg19 3,224,224 --changes-only
torchsummary-plus compare examples/resnet.py:resnet18 examples/resnet.py:resnet50 3,224,224 --depth 1 --ratios
torchsummary-plus compare timm:resnet50 timm:convnext_tiny 3,224,224 --depth 1
torchsummary-plus compare my.py:small my.py:large 3,32,32 --optimizer adamw --gpu "RTX 4090" --output models.md"""

FIT_EXAMPLES = """\
torchsummary-plus fit examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --loss cross_entropy
torchsummary-plus fit examples/gpt2.py:GPT2 1024 --gpus "RTX 4090,A100 40GB" --settings float32,bf16 --loss causal_lm
torchsummary-plus fit my.py:net 3,32,32 --output fit.html"""

GRAPH_EXAMPLES = """\
torchsummary-plus graph examples/resnet.py:resnet18 3,224,224 --depth 1 -o resnet18.svg
torchsummary-plus graph examples/resnet.py:resnet18 3,224,224 --depth 1 -o resnet18.mmd  (Mermaid, as GitHub draws it)
torchsummary-plus graph google-bert/bert-base-cased 128 --depth 2 -o bert.dot"""

Answer = tuple[str, str]  # What a command prints, and the line on the budgets that are exceeded, "" if none is.

PASS = ("batch_size", "device", "dtypes", "mode", "run")  # The arguments of a forward pass.


def table(arguments: argparse.Namespace) -> Answer:
    """Return the table for parsed arguments. Raises :class:`SummaryError`."""
    for option, use in (("max_batch", "that the batch must fit in"), ("time", "that the step runs on")):
        if getattr(arguments, option) and arguments.gpu is None:
            raise InputError(f"--{option.replace('_', '-')} needs --gpu: the GPU {use}")
    from .weights import is_weights  # Imported here: help is there sooner without it.

    if is_weights(arguments.model) and not is_config(arguments.model):
        return _weights_table(arguments)
    if arguments.world_size is not None:
        return _rank_table(arguments)
    look = chosen(arguments, "depth", "col_names", "style", "functional", "rows", "repeats", "col_width")
    with _summarised(arguments, look) as (result, model):
        step_lines = [] if result.memory is None else _step_lines(arguments, result.memory, model)
    text = "\n".join([result.to_terminal(arguments.stream), *step_lines])
    return _answer(arguments, result, text, _exceeded(arguments, result, result.memory))


@contextmanager
def _summarised(arguments: argparse.Namespace, look: Mapping[str, Any]) -> Iterator[tuple[package.ModelSummary, Any]]:
    """Yield the summary of MODEL, and the model, whose siblings can be imported inside the block."""
    # Options are checked before the model is built.
    sizes = parse_sizes(arguments.sizes, "" if arguments.max_mult_adds is None else "--max-mult-adds")
    memory = memory_options(arguments)
    with named_model(arguments.model, arguments) as model:
        yield package.summary(model, sizes, memory=memory, verbose=0, **chosen(arguments, *PASS), **look), model


def _answer(arguments: argparse.Namespace, result: Views, text: str = "", over_budget: str = "") -> Answer:
    """Return a result as the answer, saved if that was asked for."""
    return "\n".join([text or str(result), *saved(result.save, arguments.output)]), over_budget


def _weights_table(arguments: argparse.Namespace) -> Answer:
    """Return the table of a file of weights. Raises :class:`SummaryError`."""
    if (arguments.max_mult_adds, arguments.max_memory, arguments.gpu) != (None, None, None):
        raise InputError(f"{arguments.model} has weights and no forward, so nothing of it runs; accepted: --max-params")
    stored = package.weights(arguments.model)
    return _answer(arguments, stored, stored.to_text(depth=arguments.depth or ...), _exceeded(arguments, stored))


def _rank_table(arguments: argparse.Namespace) -> Answer:
    """Return the memory of one rank's step, whose builder is MODEL. Raises :class:`SummaryError`."""
    if (arguments.max_params, arguments.max_mult_adds) != (None, None):
        raise InputError("--max-params and --max-mult-adds count a whole model; leave out --world-size")
    world = chosen(arguments, "world_size", "rank", "device")
    place = parse_place(arguments.model)
    with importable(place):
        build = partial(find(*place), **parse_pairs(arguments.kwargs))
        step = {"dtypes": arguments.dtypes, "options": memory_options(arguments), **world}
        estimate = package.estimate_memory(build, parse_sizes(arguments.sizes), max(1, arguments.batch_size), **step)
        text = "\n".join([str(estimate), *_step_lines(arguments, estimate, build, **world)])
    return _answer(arguments, estimate, text, _exceeded(arguments, step=estimate))


def _step_lines(arguments: argparse.Namespace, estimate: package.MemoryEstimate, model: Any, **world: Any) -> list[str]:
    """Return the lines on ``--gpu``: whether the step fits, how long it takes, and the largest batch that fits."""
    if arguments.gpu is None:
        return []
    # An estimate for a GPU says itself whether it fits.
    lines = [] if estimate.info.gpu else [f"Fits in {arguments.gpu}: {estimate.fits(arguments.gpu).headroom}"]
    if arguments.time:
        lines.append(str(estimate.time(arguments.gpu)))
    if arguments.max_batch:
        step = {"dtypes": arguments.dtypes, "options": memory_options(arguments), **world}
        lines.append(str(package.max_batch_size(model, parse_sizes(arguments.sizes), arguments.gpu, **step)))
    return lines


def _exceeded(
    arguments: argparse.Namespace,
    counted: Report | package.WeightsFile | None = None,
    step: package.MemoryEstimate | None = None,
) -> str:
    """Return a line that names each budget that is exceeded, and by what; "" if none is."""
    figures: list[tuple[str, str, int, bool]] = []  # The budget, what it counts, the count, and whether more may be.
    if counted is not None:
        is_partial = isinstance(counted, Report) and counted.uninitialised_params > 0
        figures.append(("params", "parameters", counted.total_params, is_partial))
    if isinstance(counted, Report):
        from ..render.tables import per_sample

        work = per_sample(counted.total_mult_adds, counted)
        figures.append(("mult_adds", "multiply-adds per sample", work, bool(counted.unknown_ops)))
    exceeded = []
    for name, words, value, is_partial in figures:
        most = getattr(arguments, f"max_{name}")
        if most is not None and (value > most or is_partial):
            least = "at least " if is_partial else ""
            exceeded.append(f"{least}{value:,} {words}; --max-{name.replace('_', '-')} is {most:,}")
    if step is not None:
        most = arguments.max_memory
        if most is not None and step.peak_bytes > most:
            exceeded.append(f"a peak of {in_common_unit(step.peak_bytes)}; --max-memory is {in_common_unit(most)}")
        if arguments.gpu is not None and not (fit := step.fits(arguments.gpu)):
            exceeded.append(f"the step does not fit in {arguments.gpu}: {fit.headroom.removeprefix('no, ')}")
    return "; ".join(exceeded)


def reporting(arguments: argparse.Namespace) -> Answer:
    """Write the page for parsed arguments, and return where it is. Raises :class:`SummaryError`."""
    with _summarised(arguments, {}) as (result, _):
        (line,) = saved(result.to_html_report, arguments.output)
    return line, _exceeded(arguments, result, result.memory)


def comparison(arguments: argparse.Namespace) -> Answer:
    """Return the tables for parsed arguments. Raises :class:`SummaryError`."""
    words = [word for word in arguments.words if not _is_size(word)]
    arguments.sizes = [word for word in arguments.words if _is_size(word)]
    names = [re.split("[:/]", word.rstrip("/"))[-1] for word in words]
    with ExitStack() as stack:
        result = package.compare(
            *[stack.enter_context(named_model(word, arguments)) for word in words],
            input_size=parse_sizes(arguments.sizes),
            names=arguments.names or (names if len(set(names)) == len(names) else None),
            memory=step_options(arguments),
            **chosen(arguments, *PASS, "functional", "style", "depth", "col_names", "ratios", "changes_only"),
        )
    return _answer(arguments, result)


def _is_size(word: str) -> bool:
    """Return whether a word is a size, as in 3,224,224 or x=10, rather than a model."""
    return re.match(r"([A-Za-z_]\w*=)?[-\d(\[]", word) is not None and not re.search("[:/]", word)


def fitting(arguments: argparse.Namespace) -> Answer:
    """Return the table for parsed arguments. Raises :class:`SummaryError`."""
    sizes, options = parse_sizes(arguments.sizes, "a step"), step_options(arguments)
    with named_model(arguments.model, arguments) as model:
        tried = chosen(arguments, "batch_size", "gpus", "settings", "dtypes")
        result = package.what_if(model, sizes, options=options, **tried)
    return _answer(arguments, result)


def drawing(arguments: argparse.Namespace) -> Answer:
    """Return the tables of nodes and edges for parsed arguments. Raises :class:`SummaryError`."""
    sizes = parse_sizes(arguments.sizes, "a graph")
    with named_model(arguments.model, arguments) as model:
        result = package.graph(model, sizes, **chosen(arguments, *PASS, "depth", "repeats"))
    return _answer(arguments, result)


def saved(save: Callable[[str], Path], path: str | None) -> list[str]:
    """Save a result if a path is given, and return a line that says so. Raises :class:`InputError`."""
    try:
        return [] if path is None else [f"Saved to {save(path)}"]
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def list_of_gpus(arguments: argparse.Namespace) -> Answer:
    """Return a line per GPU: its name, memory, what a program can use of it, and its architecture."""
    lines = [
        f"{gpu.name:<22} {gpu.datasheet_gb:>4} GB  {gpu.usable_bytes / GIB:>6.2f} GiB usable  {gpu.architecture}"
        for gpu in GPUS.values()
    ]
    lines += [f"{name:<22} {gb:>4} GB  {maker}, kernels not modelled" for maker, name, gb in OTHERS]
    lines.append("M2 Max 32GB (and so on)       Apple, kernels not modelled")
    return "\n".join(line for line in lines if arguments.word.lower() in line.lower()), ""


def list_of_columns(arguments: argparse.Namespace) -> Answer:
    """Return a line per column: its name and what it shows, without the marks of Markdown."""
    width = max(map(len, COLUMNS))
    lines = [f"{name:<{width}}  {'with --memory: ' * each.of_memory}{each.about}" for name, each in COLUMNS.items()]
    text = re.sub(r"\[([^]]+)\]\([^)]*\)|`", r"\1", "\n".join(lines))
    return f"{text}\nShown by default: {', '.join(default_names(False, False))}", ""


def chosen(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return parsed arguments as keyword arguments."""
    return {name: getattr(arguments, name) for name in names}


def step_options(arguments: argparse.Namespace) -> package.StepOptions | None:
    """Return the step's options, ``gpu`` as typed; None if no estimate was requested."""
    names = ("optimizer", "loss", "autocast", "gpu", "cudnn", "gradient_accumulation_steps", "compiled")
    words = {name: getattr(arguments, name, None) for name in names}
    options = {name: word for name, word in words.items() if word is not None}
    if arguments.memory is None and getattr(arguments, "max_memory", None) is None and not options:
        return None
    if arguments.memory not in (None, *STEP_MODES):
        raise choice_error("--memory", arguments.memory, STEP_MODES)
    parse_sizes(arguments.sizes, "a step")
    return package.StepOptions(arguments.memory or "train", **options)


def memory_options(arguments: argparse.Namespace) -> package.StepOptions | None:
    """Return the step's options with the GPU that ``--gpu`` names; None if no estimate was requested."""
    step = step_options(arguments)
    if arguments.gpu is None or step is None:
        return step
    gpu_model = named_gpu(arguments.gpu)
    default = "cuda" if other_device(arguments.gpu) is None else "cpu"
    return replace(step, device=arguments.device or default, gpu=None if gpu_model is None else gpu_model.name)


def parse_sizes(words: Sequence[str], user: str = "") -> list[Any] | dict[str, Any] | None:
    """Parse sizes into ``summary``'s ``input_size``; None without any, unless a ``user`` of them is named.

    >>> parse_sizes(["3,224,224", "10"]), parse_sizes(["ids=128"]), parse_sizes([])
    ([(3, 224, 224), (10,)], {'ids': (128,)}, None)
    """
    if not words and user:
        raise InputError(f"{user} needs an input: give its SIZE without the batch axis after MODEL, such as 3,224,224")
    if not words:
        return None
    names, _, texts = zip(*(word.rpartition("=") for word in words))
    sizes = []
    for text in texts:
        try:
            size = ast.literal_eval(text)
        except (ValueError, SyntaxError) as error:
            if re.fullmatch(r"[0-9]+([x*][0-9]+)+", text):
                commas = re.sub("[x*]", ",", text)
                raise InputError(f"SIZE is {describe(text)}; its axes are separated by commas: {commas}") from error
            raise choice_error("SIZE", text, ["3,224,224", "10", "()"]) from error
        sizes.append((size,) if isinstance(size, int) else size)
    if not any(names):
        return sizes
    if not all(names):
        raise InputError(f"sizes are {' '.join(words)}; accepted: all positional (3,32,32) or all named (x=3,32,32)")
    return dict(zip(names, sizes))


WEIGHTS = ".safetensors, .index.json, .gguf or .onnx"

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+|[\w-]+")
"""Names on the Hugging Face Hub: of an owner's repository, or an old name without an owner, such as gpt2."""


@contextlib.contextmanager
def named_model(word: str, arguments: argparse.Namespace) -> Iterator[Any]:
    """Yield the model that a word names; files beside its own can be imported inside the block."""
    from .configured import from_config, from_hub
    from .weights import is_weights

    kwargs = parse_pairs(arguments.kwargs)
    # Without transformers, a single word is a mistake for file.py:NAME rather than a name on the Hub.
    is_name = HUB_ID.fullmatch(word) is not None and not word.endswith(".py") and not Path(word).exists()
    if is_config(word):
        yield from_config(word, **kwargs)
    elif is_weights(word):
        raise InputError(f"MODEL is {describe(word)}, weights without a forward; torchsummary-plus MODEL lists them")
    elif is_name and ("/" in word or importlib.util.find_spec("transformers") is not None):
        yield from_hub(word, **kwargs)
    else:
        place = parse_place(word)
        with importable(place):
            yield build_model(find(*place), kwargs, arguments.meta)


def parse_pairs(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` words as keyword arguments.

    >>> parse_pairs(["num_classes=10", "widths=(8, 16)", "act=relu"])
    {'num_classes': 10, 'widths': (8, 16), 'act': 'relu'}
    """
    pairs = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key.isidentifier():
            raise choice_error("--kwargs", word, ["key=value"])
        try:
            pairs[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            pairs[key] = value
    return pairs


def build_model(target: Any, kwargs: dict[str, Any], on_meta: bool) -> Any:
    """Call a class or function and return the model; return a model that is already built as it is."""
    import torch

    if isinstance(target, torch.nn.Module) or not callable(target):
        if kwargs or on_meta:
            raise InputError(f"MODEL is {describe(target)}, not a callable: it takes no --kwargs and no --meta")
        return target
    try:
        with torch.device("meta") if on_meta else contextlib.nullcontext():
            return target(**kwargs)
    except Exception as error:
        cure = "; pass arguments as --kwargs NAME=VALUE" if isinstance(error, TypeError) else ""
        raise SummaryError(f"the model cannot be built: {type(error).__name__}: {error}{cure}") from error


def find(source: str, name: str) -> Any:
    """Return a dotted name of a module or file, or a function that builds the model of timm with that name.

    A file is imported under a name that shadows no other module. Raises :class:`InputError`, with similar names.
    """
    try:
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"file_{Path(source).stem}", source)
            assert spec is not None and spec.loader is not None  # The name ends in ".py".
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
    except Exception as error:
        raise InputError(f"{source} cannot be imported: {type(error).__name__}: {error}") from error
    if source == "timm" and not hasattr(module, name):
        return partial(module.create_model, name)
    try:
        return operator.attrgetter(name)(module)
    except AttributeError as error:
        near = difflib.get_close_matches(name, vars(module), n=5)
        like = f"; similar names: {', '.join(near)}" if near else ""
        raise InputError(f"{source} has no {name}{like}") from error


def parse_place(word: str) -> tuple[str, str]:
    """Split ``source:name`` into a module or file and a name in it. Raises :class:`InputError`."""
    source, _, name = word.rpartition(":")
    if word.endswith(".py"):
        raise InputError(f"MODEL is {describe(word)}, a file; accepted: {word}:NAME, with a class or function in it")
    if not source or not name:
        raise InputError(
            f"MODEL is {describe(word)}; accepted: 'package.module:callable', 'path/to/file.py:callable', 'timm:name', "
            f"'owner/name' on the Hugging Face Hub, a folder with config.json, or a {WEIGHTS} file"
        )
    return source, name


@contextlib.contextmanager
def importable(place: tuple[str, str]) -> Iterator[None]:
    """Temporarily put the working directory and a file's folder first in ``sys.path``: it can import its siblings."""
    before = list(sys.path)
    sys.path[:0] = [os.getcwd(), *([str(Path(place[0]).resolve().parent)] if place[0].endswith(".py") else [])]
    try:
        yield
    finally:
        sys.path[:] = before


COMMANDS: dict[str, tuple[str, str, str, Callable[[argparse.Namespace], Answer]]] = {
    "": ("MODEL [SIZE ...]", "Print the layer table of a PyTorch model: shapes, parameters, multiply-adds, memory.",
         EXAMPLES, table),
    "compare": ("MODEL MODEL ... [SIZE ...]",
                "Compare PyTorch models side by side: totals with the best marked, and aligned layers.",
                COMPARE_EXAMPLES, comparison),
    "fit": ("MODEL SIZE ...", "Say which settings of a step fit which GPUs, and up to which batch.",
            FIT_EXAMPLES, fitting),
    "graph": ("MODEL SIZE ...", "List the calls of a PyTorch model and what they read, or draw them.",
              GRAPH_EXAMPLES, drawing),
    "report": ("MODEL [SIZE ...]", "Write the layers and the memory of a step to one self-contained page.",
               REPORT_EXAMPLES, reporting),
    "gpus": ("[WORD]", "List the GPUs that --gpu and --gpus accept, and their memory.",
             "torchsummary-plus gpus\ntorchsummary-plus gpus 4090", list_of_gpus),
    "columns": ("", "List the columns that --columns accepts.", "torchsummary-plus columns", list_of_columns),
}  # fmt: skip
"""A command's usage, purpose, examples and function, by its name; without a name, the first word is a MODEL."""
