"""The options shared by the shell commands, and how they are parsed."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torchsummary_plus as package  # Which imports torch when a call is first used.

from ...data.arguments import CUDNN, PASS_MODES, RUNS, STEP_MODES
from ...data.errors import InputError, choice_error
from ...data.units import COUNT_UNITS, describe
from ...memory.gpus import GPUS
from ...render.columns import COLUMNS
from ...table.columns import default_names
from ...table.lines import REPEATS, STYLES
from .models import WEIGHTS

MODEL_HELP = (
    "package.module:callable, path/to/file.py:callable, timm:NAME, OWNER/NAME on the Hugging Face Hub, "
    "or a folder with transformers' config.json"
)
SIZE_HELP = "an input's shape without the batch axis, one per input: 3,224,224; or by argument name: x=3,224,224"


PASS = ("batch_size", "device", "dtypes", "mode", "run")  # The arguments of a forward pass.


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
            "--version": {"action": "version", "version": f"%(prog)s {package.__version__}"},
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


def chosen(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return parsed arguments as keyword arguments."""
    return {name: getattr(arguments, name) for name in names}


def with_bare_memory(words: Sequence[str]) -> list[str]:
    """Return words in which ``--memory`` without a kind of step means a training step.

    >>> with_bare_memory(["m.py:net", "--memory", "3,32,32"]), with_bare_memory(["--memory", "eval"])
    (['m.py:net', '--memory=train', '3,32,32'], ['--memory', 'eval'])
    """
    following = [*words[1:], "-"]
    bare = (word == "--memory" and not after.isalpha() for word, after in zip(words, following))
    return [f"{word}=train" if alone else word for word, alone in zip(words, bare)]


def step_options(arguments: argparse.Namespace) -> package.StepOptions | None:
    """Return the step's options, ``gpu`` as typed; None if no estimate was requested."""
    names = ("optimizer", "loss", "autocast", "gpu", "cudnn", "gradient_accumulation_steps", "compiled")
    words = {name: getattr(arguments, name, None) for name in names}
    options = {name: word for name, word in words.items() if word is not None}
    if arguments.memory is None and getattr(arguments, "max_memory", None) is None and not options:
        return None
    if arguments.memory not in (None, *STEP_MODES):
        raise choice_error("--memory", arguments.memory, STEP_MODES)
    need_sizes(arguments, "a step")
    return package.StepOptions(arguments.memory or "train", **options)


def memory_options(arguments: argparse.Namespace) -> package.StepOptions | None:
    """Return the step's options with the GPU that ``--gpu`` names; None if no estimate was requested."""
    step = step_options(arguments)
    if arguments.gpu is None or step is None:
        return step
    from ...memory.gpus import named_gpu
    from ...memory.other_devices import other_device

    gpu_model = named_gpu(arguments.gpu)
    default = "cuda" if other_device(arguments.gpu) is None else "cpu"
    return replace(step, device=arguments.device or default, gpu=None if gpu_model is None else gpu_model.name)


def need_sizes(arguments: argparse.Namespace, what: str) -> None:
    """Raise :class:`InputError` if no SIZE was given."""
    if not arguments.sizes:
        raise InputError(f"{what} needs an input: give its SIZE without the batch axis after MODEL, such as 3,224,224")


def parse_sizes(words: Sequence[str]) -> list[Any] | dict[str, Any] | None:
    """Parse sizes into ``summary``'s ``input_size``; None without any.

    >>> parse_sizes(["3,224,224", "10"]), parse_sizes(["ids=128"]), parse_sizes([])
    ([(3, 224, 224), (10,)], {'ids': (128,)}, None)
    """
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
