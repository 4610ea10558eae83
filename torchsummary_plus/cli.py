"""The shell command: a model named by its place, sizes as words -> the table on stdout, and an exit code.

0: the table was printed. 1: the model failed, when it was built or in its forward. 2: the command was not understood.
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
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from . import __version__
from .api import MODES, RUNS, summary
from .errors import InputError, SummaryError, choice_error
from .model_summary import ModelSummary
from .render.columns import COLUMNS, DEFAULT_COLUMNS
from .render.lines import STYLES
from .units import describe

EXAMPLES = """\
examples:
  torchsummary-plus examples/vgg.py:vgg16 3,224,224
  torchsummary-plus torchvision.models:resnet50 3,224,224 --kwargs num_classes=10
  torchsummary-plus examples/llama.py:llama2_70b 4096 --meta --style tree --depth 2
  torchsummary-plus my_models.py:TwoInputs 3,64,64 10 --dtypes float32,int64
  torchsummary-plus examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --gpu "RTX 4090"
  torchsummary-plus examples/gpt2.py:GPT2 1024 --autocast bfloat16 --optimizer adamw --gpu "A100 40GB" --max-batch
  torchsummary-plus examples/vgg.py:vgg16 (no size: names and parameters only)
"""

MEMORY_MODES = ("train", "eval")

BRANCHES = str.maketrans("├└│─", "|`|-")
"""What a tree is drawn with where the output cannot take its glyphs."""


class BuildError(SummaryError, RuntimeError):
    """The model could not be built: its own constructor or function failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, by default on the words of the command line, and return its exit code."""
    arguments = build_parser().parse_intermixed_args(argv)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # What the model prints is not part of the table.
            text = table(arguments)
    except InputError as error:
        return fail(error, 2)
    except SummaryError as error:
        return fail(error, 1)
    show(text)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchsummary-plus",
        description="Print the layer table of a PyTorch model: shapes, parameters, multiply-adds, bytes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_model_options(parser)
    add_pass_options(parser)
    add_table_options(parser)
    add_memory_options(parser)
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model: what any command on a model needs."""
    parser.add_argument("model", metavar="MODEL", help="package.module:callable or path/to/file.py:callable")
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--kwargs",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an argument of the callable, a Python literal or else plain text; repeat for more",
    )
    group.add_argument("--meta", action="store_true", help='build it under torch.device("meta"): shapes, no weights')


def add_pass_options(parser: argparse.ArgumentParser) -> None:
    """Which inputs, and how to run on them."""
    parser.add_argument(
        "sizes",
        metavar="SIZE",
        nargs="*",
        help="the size of an input without the batch axis: 3,224,224; several are several inputs; x=3,224,224 names it",
    )
    group = parser.add_argument_group("the pass")
    group.add_argument("--batch-size", metavar="N", type=int, default=-1, help="-1, the default, is any batch")
    group.add_argument("--device", help="cpu, cuda, cuda:1, ...; the model's own by default")
    group.add_argument("--dtypes", metavar="DTYPE[,DTYPE...]", help="one for all inputs or one for each: float32,int64")
    group.add_argument("--mode", default="same", help=f"{one_of(MODES)}; same, the default, is the model as it stands")
    group.add_argument("--run", default="auto", help=f"{one_of(RUNS)}; fake computes nothing, real runs the model")


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """What the table shows."""
    group = parser.add_argument_group("the table")
    group.add_argument("--style", default="torchsummary", help=f"{one_of(STYLES)}; flat by default")
    group.add_argument("--depth", metavar="N", type=int, help="deepest nesting with lines of its own; all by default")
    group.add_argument(
        "--columns",
        metavar="NAME[,NAME...]",
        help=f"of {', '.join(COLUMNS)}; by default {','.join(DEFAULT_COLUMNS)}",
    )
    group.add_argument("--functional", action="store_true", help="a line for each function that no module stands for")


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    """What a step takes, and what it is to fit in; each option but the first asks for the estimate too."""
    group = parser.add_argument_group("the memory of a step")
    group.add_argument("--memory", metavar="STEP", help=f"{one_of(MEMORY_MODES)}: adds the estimate; train by default")
    group.add_argument("--optimizer", metavar="NAME", help="sgd, adam, adamw, ... of torch.optim")
    group.add_argument("--autocast", metavar="DTYPE", help="autocast the forward: bfloat16, float16")
    group.add_argument(
        "--gpu", metavar="MEMORY", help='what it is to fit in: "RTX 4090", 24GiB; the device is then cuda'
    )
    group.add_argument("--max-batch", action="store_true", help="also search the largest batch that fits in --gpu")


def one_of(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(names)


def table(arguments: argparse.Namespace) -> str:
    """The table that some parsed arguments ask for. Raises :class:`SummaryError`."""
    source, _, name = arguments.model.rpartition(":")
    if not source or not name:
        raise choice_error("MODEL", arguments.model, ["package.module:callable", "path/to/file.py:callable"])
    if arguments.max_batch and arguments.gpu is None:
        raise InputError("--max-batch needs --gpu: the memory that the batch is to fit in")
    memory = memory_options(arguments)
    with importable(os.getcwd(), *([str(Path(source).resolve().parent)] if source.endswith(".py") else [])):
        model = build_model(find(source, name), parse_pairs(arguments.kwargs), arguments.meta)
        sizes, dtypes = parse_sizes(arguments.sizes), one_or_all(split(arguments.dtypes))
        result = summary(
            model,
            sizes,
            arguments.batch_size,
            arguments.device,
            dtypes,
            depth=arguments.depth,
            col_names=split(arguments.columns),
            mode=arguments.mode,
            run=arguments.run,
            style=arguments.style,
            functional=arguments.functional,
            memory=memory,
            verbose=0,
        )
        answers = [] if arguments.gpu is None else answers_of(arguments, result, model, sizes, dtypes, memory)
    return "\n".join([str(result), *answers])


def memory_options(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What ``summary`` takes as ``memory``; None where nothing of the kind was asked for."""
    from .memory.gpus import named_gpu

    mode, optimizer, autocast, gpu = arguments.memory, arguments.optimizer, arguments.autocast, arguments.gpu
    if all(word is None for word in (mode, optimizer, autocast, gpu)):
        return None
    if mode not in (None, *MEMORY_MODES):
        raise choice_error("--memory", mode, MEMORY_MODES)
    device = arguments.device or ("cuda" if gpu is not None else None)
    card = None if gpu is None else named_gpu(gpu)
    name = None if card is None else card.name
    return {"mode": mode or "train", "optimizer": optimizer, "autocast": autocast, "device": device, "gpu": name}


def answers_of(
    arguments: argparse.Namespace, result: ModelSummary, model: Any, sizes: Any, dtypes: Any, options: Any
) -> list[str]:
    """The lines that say whether the step fits in ``--gpu``, and the largest batch that does."""
    from .memory_api import max_batch_size  # Only now: a table alone is quicker without it.

    assert result.memory is not None  # ``--gpu`` asks for it.
    fits = "fits" if result.memory.fits(arguments.gpu) else "does not fit"
    lines = [f"A batch of {result.memory.info.batch_size:,} {fits} in {arguments.gpu}"]
    if arguments.max_batch:
        step = {name: value for name, value in options.items() if name != "gpu"}
        lines.append(str(max_batch_size(model, sizes, arguments.gpu, dtypes=dtypes, **step)))
    return lines


def build_model(found: Any, kwargs: dict[str, Any], on_meta: bool) -> Any:
    """What a class or function returns; a model that is already built is itself.

    Raises :class:`InputError` for keyword arguments with nothing to call, :class:`BuildError` where the call fails.
    """
    if isinstance(found, nn.Module) or not callable(found):
        if kwargs or on_meta:
            raise InputError(f"MODEL is {describe(found)}, which is not called: it takes no --kwargs and no --meta")
        return found
    try:
        with torch.device("meta") if on_meta else contextlib.nullcontext():
            return found(**kwargs)
    except Exception as error:
        raise BuildError(f"the model cannot be built: {type(error).__name__}: {error}") from error


def import_source(source: str) -> ModuleType:
    """The module of a dotted name or a file. Raises :class:`InputError` where it is not there or fails to import."""
    try:
        return import_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:
        raise InputError(f"{source} cannot be imported: {type(error).__name__}: {error}") from error


def import_file(path: Path) -> ModuleType:
    """The module of a file, under a name that hides no other module's."""
    spec = importlib.util.spec_from_file_location(f"file_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # The name ends in ".py".
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def importable(*folders: str) -> Iterator[None]:
    """The folders first in ``sys.path``, for a while: a file may import its neighbours, as a script may."""
    before = list(sys.path)
    sys.path[:0] = folders
    try:
        yield
    finally:
        sys.path[:] = before


def find(source: str, name: str) -> Any:
    """A dotted name in a module or file. Raises :class:`InputError` with the names most like it."""
    module = import_source(source)
    try:
        return operator.attrgetter(name)(module)
    except AttributeError as error:
        near = difflib.get_close_matches(name, vars(module), n=5)
        like = f"; names like it: {', '.join(near)}" if near else ""
        raise InputError(f"{source} has no {name}{like}") from error


def parse_pairs(words: Sequence[str]) -> dict[str, Any]:
    """``key=value`` words as keyword arguments.

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


def parse_sizes(words: Sequence[str]) -> list[Any] | dict[str, Any] | None:
    """Sizes as ``summary`` takes them; None for none.

    >>> parse_sizes(["3,224,224", "10"]), parse_sizes(["ids=128"]), parse_sizes([])
    ([(3, 224, 224), (10,)], {'ids': (128,)}, None)
    """
    if not words:
        return None
    named = [word.rpartition("=") for word in words]
    sizes = [parse_size(size) for _, _, size in named]
    names = [name for name, _, _ in named]
    if not any(names):
        return sizes
    if not all(names):
        raise InputError(f"sizes are {' '.join(words)}; accepted: all by place (3,32,32) or all by name (x=3,32,32)")
    return dict(zip(names, sizes))


def parse_size(word: str) -> Any:
    try:
        size = ast.literal_eval(word)
        return (size,) if isinstance(size, int) else size
    except (ValueError, SyntaxError) as error:
        raise choice_error("SIZE", word, ["3,224,224", "10", "()"]) from error


def split(word: str | None) -> list[str] | None:
    """Words between commas; None stays None.

    >>> split("output_size, num_params"), split(None)
    (['output_size', 'num_params'], None)
    """
    return None if word is None else [part.strip() for part in word.split(",")]


def one_or_all(words: list[str] | None) -> str | list[str] | None:
    """A single word by itself: it stands for all."""
    return words[0] if words is not None and len(words) == 1 else words


def fail(error: SummaryError, code: int) -> int:
    print(f"torchsummary-plus: {printable(str(error), sys.stderr.encoding)}", file=sys.stderr)
    return code


def show(text: str) -> None:
    """Print, quietly also where the reader has closed the pipe."""
    try:
        print(printable(text, sys.stdout.encoding), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # For the flush at the interpreter's end.


def printable(text: str, encoding: str) -> str:
    """The text as an encoding can carry it: as it is, else a tree of plain strokes and "?" for the rest.

    >>> printable("└─fc (Linear)", "utf-8"), printable("└─fc (Linear)", "ascii")
    ('└─fc (Linear)', '`-fc (Linear)')
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(BRANCHES).encode(encoding, "replace").decode(encoding)
    return text
