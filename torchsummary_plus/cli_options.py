"""The options that the shell's commands share, and how their words are read."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import Any

from .api import MODES, RUNS
from .errors import InputError, choice_error
from .render.columns import COLUMNS, DEFAULT_COLUMNS
from .render.lines import STYLES
from .views import Views

MEMORY_MODES = ("train", "eval")


SIZE_HELP = "the size of an input without the batch axis: 3,224,224; several are several inputs; x=3,224,224 names it"


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """How a model is built."""
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
    """How to run on the inputs."""
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
    group.add_argument("--output", metavar="FILE", help="also write a new file: .md, .tex, .csv, .json, .html, ...")


def add_memory_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """What a step takes, and what it is to fit in; each option but the first asks for the estimate too."""
    group = parser.add_argument_group("the memory of a step")
    group.add_argument("--memory", metavar="STEP", help=f"{one_of(MEMORY_MODES)}: adds the estimate; train by default")
    group.add_argument("--optimizer", metavar="NAME", help="sgd, adam, adamw, ... of torch.optim")
    group.add_argument("--loss", metavar="NAME", help="cross_entropy, mse, causal_lm, ...; the output's sum by default")
    group.add_argument("--autocast", metavar="DTYPE", help="autocast the forward: bfloat16, float16")
    group.add_argument(
        "--gpu", metavar="MEMORY", help='what it is to fit in: "RTX 4090", 24GiB; the device is then cuda'
    )
    return group


def one_of(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(names)


def step_options(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The options of a step that were given, its mode at least; None where nothing of the kind was asked for."""
    asked = {name: getattr(arguments, name) for name in ("optimizer", "loss", "autocast", "gpu")}
    given = {name: word for name, word in asked.items() if word is not None}
    if arguments.memory is None and not given:
        return None
    if arguments.memory not in (None, *MEMORY_MODES):
        raise choice_error("--memory", arguments.memory, MEMORY_MODES)
    return {"mode": arguments.memory or "train", **given}


def saved(result: Views, path: str | None) -> list[str]:
    """Write a result to a file where one is named; what was done, as a line. Raises :class:`InputError`."""
    if path is None:
        return []
    try:
        return [f"Written: {result.save(path)}"]
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


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
