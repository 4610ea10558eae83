"""The options shared by the shell commands, and how they are parsed."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from ...data.arguments import CUDNN, PASS_MODES, RUNS, STEP_MODES
from ...data.errors import ForwardError, InputError, choice_error
from ...data.units import describe
from ...render.columns import COLUMNS
from ...table.columns import default_names
from ...table.lines import STYLES
from .output import show

if TYPE_CHECKING:
    from ..step_options import StepOptions

MODEL_HELP = (
    "package.module:callable, path/to/file.py:callable, timm:NAME, OWNER/NAME on the Hugging Face Hub, "
    "or a folder with transformers' config.json"
)
SIZE_HELP = "an input's shape without the batch axis, one per input: 3,224,224; or by argument name: x=3,224,224"


class Parser(argparse.ArgumentParser):
    """A parser whose help begins with examples, which names options similar to unknown ones.

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

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 after printing the usage and the error, with similar names for unknown options."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for word in message.split():
            near = get_close_matches(word, known, n=3) if word.startswith("--") and word not in known else []
            message += f"; similar names: {', '.join(near)}" if near else ""
        super().error(message)

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is not sys.stdout:
            super()._print_message(message, file)
        elif code := show(message.rstrip("\n")):
            self.exit(code)


PASS = ("batch_size", "device", "dtypes", "mode", "run")  # The arguments of a forward pass.


def add_model(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Add MODEL, SIZE and the options for building the model."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP + also)
    parser.add_argument("sizes", metavar="SIZE", nargs="*", default=[], help=SIZE_HELP)
    add_model_options(parser)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for building a model."""
    add = parser.add_argument_group("model").add_argument
    text = "keyword argument of the callable, a Python literal or plain text; can be repeated"
    add("--kwargs", metavar="KEY=VALUE", action="append", default=[], help=text)
    add("--meta", action="store_true", help='build the model on the "meta" device, without weights')


def add_pass_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for running the model."""
    group = parser.add_argument_group("forward pass")
    group.add_argument("--batch-size", metavar="N", type=int, default=-1, help="default: -1, any batch size")
    group.add_argument("--device", help="cpu, cuda, cuda:1, ...; default: the model's")
    add_dtypes(group)
    modes = ", ".join(PASS_MODES)
    group.add_argument("--mode", default="same", help=f"{modes}; same, the default, keeps the model's mode")
    group.add_argument("--run", default="auto", help=f"{', '.join(RUNS)}; fake needs only shapes, real computes")


def add_dtypes(group: argparse._ArgumentGroup) -> None:
    """Add the option for the inputs' dtypes."""
    text = "one dtype for all inputs, or one per input"
    group.add_argument("--dtypes", metavar="DTYPE[,DTYPE...]", type=one_or_more, help=text)


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the table's contents."""
    add = parser.add_argument_group("table").add_argument
    add("--style", default="torchsummary", help=f"{', '.join(STYLES)}; default: torchsummary")
    add("--depth", metavar="N", type=int, help="deepest level to show; default: all")
    text = f"any of {', '.join(COLUMNS)}; default: {','.join(default_names(False, False))}"
    add("--columns", dest="col_names", type=listed, metavar="NAME[,NAME...]", help=text)
    add("--functional", action="store_true", help="also show functional operations")


def add_output_option(parser: argparse.ArgumentParser, suffixes: str = ".md, .tex, .csv, .json, .html, ...") -> None:
    """Add the option for saving the result."""
    parser.add_argument("-o", "--output", metavar="FILE", help=f"also save to a file: {suffixes}")


def add_memory_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of a memory estimate; any of them turns the estimate on."""
    group = add_step_options(parser)
    text = 'GPU (torchsummary-plus gpus lists them) or memory to fit in: "RTX 4090", 24GiB; default device: cuda'
    group.add_argument("--gpu", metavar="MEMORY", help=text)
    return group


def add_step_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of a step, wherever it runs."""
    group = parser.add_argument_group("memory estimate of a step")
    add = group.add_argument
    add("--memory", metavar="STEP", help=f"kind of step: {', '.join(STEP_MODES)}; train if no value follows")
    add("--optimizer", metavar="NAME", help="a torch.optim optimizer, such as sgd, adam or adamw")
    add("--loss", metavar="NAME", help="such as cross_entropy, mse or causal_lm; default: the sum of the output")
    add("--autocast", metavar="DTYPE", help="run the forward under autocast: bfloat16, float16")
    text = "micro-batches of --batch-size per update"
    add("--gradient-accumulation-steps", metavar="N", type=int, help=text)
    add("--compiled", action="store_true", default=None, help="predict the step as torch.compile runs it")
    add("--cudnn", metavar="HOW", help=f"{', '.join(CUDNN)}: source of cuDNN's workspaces; default: auto")
    return group


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


def step_options(arguments: argparse.Namespace) -> StepOptions | None:
    """Return the step's options, ``gpu`` as typed; None if no estimate was requested."""
    names = ("optimizer", "loss", "autocast", "gpu", "cudnn", "gradient_accumulation_steps", "compiled")
    words = {name: getattr(arguments, name, None) for name in names}
    options = {name: word for name, word in words.items() if word is not None}
    if arguments.memory is None and getattr(arguments, "max_memory", None) is None and not options:
        return None
    if arguments.memory not in (None, *STEP_MODES):
        raise choice_error("--memory", arguments.memory, STEP_MODES)
    need_sizes(arguments, "a step")
    from ..step_options import StepOptions

    return StepOptions(arguments.memory or "train", **options)


def memory_options(arguments: argparse.Namespace) -> StepOptions | None:
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
    named = [word.rpartition("=") for word in words]
    sizes = [parse_size(size) for _, _, size in named]
    names = [name for name, _, _ in named]
    if not any(names):
        return sizes
    if not all(names):
        raise InputError(f"sizes are {' '.join(words)}; accepted: all positional (3,32,32) or all named (x=3,32,32)")
    return dict(zip(names, sizes))


def parse_size(word: str) -> Any:
    """Parse one size. Raises :class:`InputError`."""
    try:
        size = ast.literal_eval(word)
        return (size,) if isinstance(size, int) else size
    except (ValueError, SyntaxError) as error:
        if re.fullmatch(r"[0-9]+([x*][0-9]+)+", word):
            commas = re.sub("[x*]", ",", word)
            raise InputError(f"SIZE is {describe(word)}; its axes are separated by commas: {commas}") from error
        raise choice_error("SIZE", word, ["3,224,224", "10", "()"]) from error


def say_commas(error: ForwardError, words: Sequence[str]) -> None:
    """If a forward failed on several sizes of one axis, change the hint: they were probably meant as one size."""
    if len(words) > 1 and all(map(str.isdecimal, words)):
        error.hint = f"these are {len(words)} inputs of one axis each; the axes of one input are separated by commas: "
        error.hint += ",".join(words)


def listed(word: str) -> list[str]:
    """Split a comma-separated list.

    >>> listed("output_size, num_params")
    ['output_size', 'num_params']
    """
    return [part.strip() for part in word.split(",")]


def one_or_more(word: str) -> str | list[str]:
    """Split a comma-separated list; a single word stays one, to apply to all inputs."""
    words = listed(word)
    return words[0] if len(words) == 1 else words
