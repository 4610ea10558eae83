"""The shell commands: each has its parser, and a function from parsed arguments to the answer."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...data.errors import InputError
from ...data.model_configs import is_config
from ...data.units import COUNT_UNITS, GIB, in_common_unit
from ...render.columns import COLUMNS
from ...table.chosen import REPEATS
from ...table.columns import default_names
from ...table.rows import Report
from .models import WEIGHTS, find, importable, named_model, parse_pairs, parse_place
from .options import (
    MODEL_HELP,
    PASS,
    SIZE_HELP,
    Parser,
    add_dtypes,
    add_memory_options,
    add_model,
    add_model_options,
    add_output_option,
    add_pass_options,
    add_step_options,
    add_table_options,
    chosen,
    listed,
    memory_options,
    need_sizes,
    parse_sizes,
    step_options,
)
from .output import Answer, saved, writable

if TYPE_CHECKING:
    from ...memory.estimate import Estimate
    from ...results.memory_estimate import MemoryEstimate
    from ...results.model_summary import ModelSummary
    from ...results.views import Views
    from ...results.weights_file import WeightsFile


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
torchsummary-plus train.py:build 8192 --world-size 64 --optimizer adamw --gpu H100  (build() wraps the model)

other commands, each with its own --help:
torchsummary-plus compare examples/vgg.py:vgg16 examples/vgg.py:vgg19 3,224,224 --depth 1
torchsummary-plus fit examples/resnet.py:resnet50 3,224,224 --batch-size 64 --gpus "RTX 4090,H100"
torchsummary-plus graph examples/resnet.py:resnet18 3,224,224 --depth 1 -o resnet18.svg
torchsummary-plus report examples/resnet.py:resnet50 3,224,224 --optimizer adamw -o resnet50.html
torchsummary-plus gpus  (names for --gpu)
torchsummary-plus columns  (names for --columns)"""


def table_parser() -> Parser:
    """Return the parser of the command without a name."""
    about = "Print the layer table of a PyTorch model: shapes, parameters, multiply-adds, memory."
    parser = Parser("", "MODEL [SIZE ...]", about, EXAMPLES)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_model(parser, f", or a {WEIGHTS} file")
    add_pass_options(parser)
    add_table_options(parser)
    add = parser.add_argument_group("rows").add_argument
    text = "show only a type (Conv2d), a path or pattern (layer1.*), or a range (0:20)"
    add("--rows", type=listed, metavar="WHICH[,WHICH...]", help=text)
    add("--repeats", help=f"{' or '.join(REPEATS)} equal neighbours; default: fold in nested text")
    add("--col-width", metavar="N", type=int, help="maximum length of a name or shape; default: 60")
    add = add_memory_options(parser).add_argument
    add("--max-batch", action="store_true", help="also find the largest batch that fits in --gpu")
    add("--time", action="store_true", help="also print how long the step takes on --gpu")
    add("--world-size", metavar="N", type=int, help="number of ranks; MODEL builds and wraps the model")
    add("--rank", metavar="N", type=int, default=0, help="the rank to estimate; default: 0")
    add_budget_options(parser)
    add_output_option(parser)
    return parser


def table(arguments: argparse.Namespace) -> Answer:
    """Return the table for parsed arguments. Raises :class:`SummaryError`."""
    for option, use in (("max_batch", "that the batch must fit in"), ("time", "that the step runs on")):
        if getattr(arguments, option) and arguments.gpu is None:
            raise InputError(f"--{option.replace('_', '-')} needs --gpu: the GPU {use}")
    from ..weights import is_weights

    if is_weights(arguments.model) and not is_config(arguments.model):
        return _weights_table(arguments)
    if arguments.world_size is not None:
        return _rank_table(arguments)
    look = chosen(arguments, "depth", "col_names", "style", "functional", "rows", "repeats", "col_width")
    with _summarised(arguments, look) as (result, model):
        answers = [] if result.memory is None else _step_lines(arguments, result.memory, model)
    lines = [result.to_terminal(arguments.stream), *answers, *saved(result, arguments.output)]
    return Answer("\n".join(lines), _exceeded(arguments, result, result.memory))


@contextmanager
def _summarised(arguments: argparse.Namespace, look: Mapping[str, Any]) -> Iterator[tuple[ModelSummary, Any]]:
    """Yield the summary of MODEL, and the model; ``look`` has the options of the table.

    Options are checked before the model is built. Files beside its own can be imported inside the block.
    """
    from ..table import summary

    if arguments.max_mult_adds is not None:
        need_sizes(arguments, "--max-mult-adds")
    memory, sizes = memory_options(arguments), parse_sizes(arguments.sizes)
    with named_model(arguments.model, arguments) as model:
        yield summary(model, sizes, memory=memory, verbose=0, **chosen(arguments, *PASS), **look), model


def _weights_table(arguments: argparse.Namespace) -> Answer:
    """Return the table of a file of weights. Raises :class:`SummaryError`."""
    from ..weights import weights

    if (arguments.max_mult_adds, arguments.max_memory, arguments.gpu) != (None, None, None):
        raise InputError(f"{arguments.model} has weights and no forward, so nothing of it runs; accepted: --max-params")
    stored = weights(arguments.model)
    lines = [stored.to_text(depth=arguments.depth or ...), *saved(stored, arguments.output)]
    return Answer("\n".join(lines), _exceeded(arguments, stored, None))


def _rank_table(arguments: argparse.Namespace) -> Answer:
    """Return the memory of one rank's step, whose builder is MODEL. Raises :class:`SummaryError`."""
    from ..memory import estimate_memory

    if (arguments.max_params, arguments.max_mult_adds) != (None, None):
        raise InputError("--max-params and --max-mult-adds count a whole model; leave out --world-size")
    world = chosen(arguments, "world_size", "rank", "device")
    place = parse_place(arguments.model)
    with importable(place):
        build = partial(find(*place), **parse_pairs(arguments.kwargs))
        step = {"dtypes": arguments.dtypes, "options": memory_options(arguments)}
        estimate = estimate_memory(build, parse_sizes(arguments.sizes), max(1, arguments.batch_size), **step, **world)
        lines = [str(estimate), *_step_lines(arguments, estimate, build, **world)]
    return Answer("\n".join([*lines, *saved(estimate, arguments.output)]), _exceeded(arguments, None, estimate))


def _step_lines(arguments: argparse.Namespace, estimate: MemoryEstimate, model: Any, **world: Any) -> list[str]:
    """Return the lines on ``--gpu``: whether the step fits, how long it takes, and the largest batch that fits."""
    from ..memory import max_batch_size

    if arguments.gpu is None:
        return []
    # An estimate for a GPU says itself whether it fits.
    lines = [] if estimate.info.gpu else [f"Fits in {arguments.gpu}: {estimate.fits(arguments.gpu).headroom}"]
    if arguments.time:
        lines.append(str(estimate.time(arguments.gpu)))
    if arguments.max_batch:
        step = {"dtypes": arguments.dtypes, "options": memory_options(arguments), **world}
        lines.append(str(max_batch_size(model, parse_sizes(arguments.sizes), arguments.gpu, **step)))
    return lines


def add_budget_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for budgets."""
    title = "budgets (the exit status is 3 if one is exceeded, or a step does not fit --gpu)"
    add = parser.add_argument_group(title).add_argument
    add("--max-params", metavar="COUNT", type=count, help="the most parameters: 30M, 7B, 125000")
    add("--max-mult-adds", metavar="COUNT", type=count, help="the most multiply-adds per sample: 5G")
    add("--max-memory", metavar="MEMORY", type=memory, help="the highest peak of the step: 24GiB, 24GB")


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


def _exceeded(arguments: argparse.Namespace, counted: Report | WeightsFile | None, step: Estimate | None) -> str:
    """Return a line that names each budget that is exceeded, and by what; "" if none is."""
    return "; ".join([*_counts(arguments, counted), *_bytes(arguments, step)])


def _counts(arguments: argparse.Namespace, counted: Report | WeightsFile | None) -> Iterator[str]:
    """Yield the counts that are too high, or of which only a lower bound is known."""
    if counted is None:
        return
    report = counted if isinstance(counted, Report) else None
    figures = [("params", "parameters", counted.total_params, report is not None and report.uninitialised_params)]
    if report is not None:
        from ...render.comparison_tables import per_sample

        work = per_sample(report.total_mult_adds, report)
        figures.append(("mult_adds", "multiply-adds per sample", work, bool(report.unknown_ops)))
    for name, words, value, is_partial in figures:
        most = getattr(arguments, f"max_{name}")
        if most is not None and (value > most or is_partial):
            least = "at least " if is_partial else ""
            yield f"{least}{value:,} {words}; --max-{name.replace('_', '-')} is {most:,}"


def _bytes(arguments: argparse.Namespace, step: Estimate | None) -> Iterator[str]:
    """Yield the peak if it is too high, and what is missing if the step does not fit."""
    if step is None:
        return
    most = arguments.max_memory
    if most is not None and step.peak_bytes > most:
        yield f"a peak of {in_common_unit(step.peak_bytes)}; --max-memory is {in_common_unit(most)}"
    fit = None if arguments.gpu is None else step.fits(arguments.gpu)
    if fit is not None and not fit:
        yield f"the step does not fit in {arguments.gpu}: {fit.headroom.removeprefix('no, ')}"


REPORT_EXAMPLES = """\
torchsummary-plus report examples/resnet.py:resnet50 3,224,224 -o resnet50.html
torchsummary-plus report examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --gpu "RTX 4090"
torchsummary-plus report google-bert/bert-base-cased 128 --optimizer adamw -o bert.html"""


def report_parser() -> Parser:
    """Return the parser of the command."""
    about = "Write the layers and the memory of a step to one self-contained page."
    parser = Parser("report", "MODEL [SIZE ...]", about, REPORT_EXAMPLES)
    add_model(parser)
    add_pass_options(parser)
    add_memory_options(parser)
    add_budget_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", default="report.html", help="default: report.html")
    return parser


def reporting(arguments: argparse.Namespace) -> Answer:
    """Write the page for parsed arguments, and return where it is. Raises :class:`SummaryError`."""
    with _summarised(arguments, {}) as (result, _), writable(arguments.output):
        path = result.to_html_report(arguments.output)
    return Answer(f"Saved to {path}", _exceeded(arguments, result, result.memory))


COMPARE_EXAMPLES = """\
torchsummary-plus compare examples/vgg.py:vgg16 examples/vgg.py:vgg19 3,224,224 --changes-only
torchsummary-plus compare examples/resnet.py:resnet18 examples/resnet.py:resnet50 3,224,224 --depth 1 --ratios
torchsummary-plus compare timm:resnet50 timm:convnext_tiny 3,224,224 --depth 1
torchsummary-plus compare my.py:small my.py:large 3,32,32 --optimizer adamw --gpu "RTX 4090" --output models.md"""


def compare_parser() -> Parser:
    """Return the parser of the command."""
    about = "Compare PyTorch models side by side: totals with the best marked, and aligned layers."
    parser = Parser("compare", "MODEL MODEL ... [SIZE ...]", about, COMPARE_EXAMPLES)
    text = f"two or more models: {MODEL_HELP}; then {SIZE_HELP}"
    parser.add_argument("words", metavar="MODEL|SIZE", nargs="+", help=text)
    add_model_options(parser)
    add_pass_options(parser)
    add_table_options(parser)
    add_memory_options(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument("--names", type=listed, metavar="NAME[,NAME...]", help="names to show for the models")
    group.add_argument("--ratios", action="store_true", help="also show ratios to the first model")
    group.add_argument("--changes-only", action="store_true", help="hide layers that all models share")
    add_output_option(parser)
    return parser


def comparison(arguments: argparse.Namespace) -> Answer:
    """Return the tables for parsed arguments. Raises :class:`SummaryError`."""
    from ..compare import compare

    words = [word for word in arguments.words if not _is_size(word)]
    arguments.sizes = [word for word in arguments.words if _is_size(word)]
    names = [re.split("[:/]", word.rstrip("/"))[-1] for word in words]
    with ExitStack() as stack:
        result = compare(
            *[stack.enter_context(named_model(word, arguments)) for word in words],
            input_size=parse_sizes(arguments.sizes),
            names=arguments.names or (names if len(set(names)) == len(names) else None),
            memory=step_options(arguments),
            **chosen(arguments, *PASS, "functional", "style", "depth", "col_names", "ratios", "changes_only"),
        )
    return _answer(result, arguments)


def _answer(result: Views, arguments: argparse.Namespace) -> Answer:
    """Return a result as the answer, saved if that was asked for."""
    return Answer("\n".join([str(result), *saved(result, arguments.output)]))


def _is_size(word: str) -> bool:
    """Return whether a word is a size, as in 3,224,224 or x=10, rather than a model."""
    return re.match(r"([A-Za-z_]\w*=)?[-\d(\[]", word) is not None and not re.search("[:/]", word)


FIT_EXAMPLES = """\
torchsummary-plus fit examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --loss cross_entropy
torchsummary-plus fit examples/gpt2.py:GPT2 1024 --gpus "RTX 4090,A100 40GB" --settings float32,bf16 --loss causal_lm
torchsummary-plus fit my.py:net 3,32,32 --output fit.html"""


def fit_parser() -> Parser:
    """Return the parser of the command."""
    about = "Say which settings of a step fit which GPUs, and up to which batch."
    parser = Parser("fit", "MODEL SIZE ...", about, FIT_EXAMPLES)
    add_model(parser)
    group = parser.add_argument_group("what to try")
    text = "GPUs by name; default: common ones from 8 to 80 GB"
    group.add_argument("--gpus", type=listed, metavar="GPU[,GPU...]", help=text)
    text = "float32, bf16, fp16, 8-bit optimizer, ...; default: all"
    group.add_argument("--settings", type=listed, metavar="NAME[,NAME...]", help=text)
    group.add_argument("--batch-size", metavar="N", type=int, default=1, help="samples of a step; default: 1")
    add_dtypes(group)
    add_step_options(parser)
    add_output_option(parser)
    return parser


def fitting(arguments: argparse.Namespace) -> Answer:
    """Return the table for parsed arguments. Raises :class:`SummaryError`."""
    from ..what_if import what_if

    need_sizes(arguments, "a step")
    with named_model(arguments.model, arguments) as model:
        tried = chosen(arguments, "batch_size", "gpus", "settings", "dtypes")
        result = what_if(model, parse_sizes(arguments.sizes), options=step_options(arguments), **tried)
    return _answer(result, arguments)


GRAPH_EXAMPLES = """\
torchsummary-plus graph examples/resnet.py:resnet18 3,224,224 --depth 1 -o resnet18.svg
torchsummary-plus graph examples/resnet.py:resnet18 3,224,224 --depth 1 -o resnet18.mmd  (Mermaid, as GitHub draws it)
torchsummary-plus graph google-bert/bert-base-cased 128 --depth 2 -o bert.dot"""


def graph_parser() -> Parser:
    """Return the parser of the command."""
    about = "List the calls of a PyTorch model and what they read, or draw them."
    parser = Parser("graph", "MODEL SIZE ...", about, GRAPH_EXAMPLES)
    add_model(parser)
    add_pass_options(parser)
    group = parser.add_argument_group("graph")
    group.add_argument("--depth", metavar="N", type=int, help="deepest level with nodes of its own; default: all")
    group.add_argument("--repeats", default="fold", help="fold or show equal neighbours; default: fold")
    add_output_option(parser, ".svg, .dot, .mmd, .html, .json, ...")
    return parser


def drawing(arguments: argparse.Namespace) -> Answer:
    """Return the tables of nodes and edges for parsed arguments. Raises :class:`SummaryError`."""
    from ..table import graph

    need_sizes(arguments, "a graph")
    with named_model(arguments.model, arguments) as model:
        result = graph(model, parse_sizes(arguments.sizes), **chosen(arguments, *PASS, "depth", "repeats"))
    return _answer(result, arguments)


def gpus_parser() -> Parser:
    """Return the parser of the command that lists GPUs."""
    examples = "torchsummary-plus gpus\ntorchsummary-plus gpus 4090"
    parser = Parser("gpus", "[WORD]", "List the GPUs that --gpu and --gpus accept, and their memory.", examples)
    parser.add_argument("word", metavar="WORD", nargs="?", default="", help="only names with this in them")
    return parser


def list_of_gpus(arguments: argparse.Namespace) -> Answer:
    """Return a line per GPU: its name, memory, what a program can use of it, and its architecture."""
    from ...memory.gpus import GPUS
    from ...memory.other_devices import AMD, INTEL

    lines = [
        f"{gpu.name:<22} {gpu.datasheet_gb:>4} GB  {gpu.usable_bytes / GIB:>6.2f} GiB usable  {gpu.architecture}"
        for gpu in GPUS.values()
    ]
    for maker, devices in (("AMD", AMD), ("Intel", INTEL)):
        lines += [f"{name:<22} {gb:>4} GB  {maker}, kernels not modelled" for name, gb in devices.items()]
    lines.append("M2 Max 32GB (and so on)       Apple, kernels not modelled")
    return Answer("\n".join(line for line in lines if arguments.word.lower() in line.lower()))


def columns_parser() -> Parser:
    """Return the parser of the command that lists columns."""
    return Parser("columns", "", "List the columns that --columns accepts.", "torchsummary-plus columns")


def list_of_columns(arguments: argparse.Namespace) -> Answer:
    """Return a line per column: its name and what it shows."""
    width = max(map(len, COLUMNS))
    lines = [f"{name:<{width}}  {_about(name)}" for name in COLUMNS]
    return Answer("\n".join([*lines, f"Shown by default: {', '.join(default_names(False, False))}"]))


def _about(name: str) -> str:
    """Return what a column shows, without the marks of Markdown."""
    column = COLUMNS[name]
    text = re.sub(r"\[([^]]+)\]\([^)]*\)|`", r"\1", column.about)
    return f"with --memory: {text}" if column.of_memory else text
