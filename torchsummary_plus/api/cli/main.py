"""The shell command: prints a model's table to stdout.

Exit codes: 0 for success; 1 if building or running the model failed; 2 for invalid arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...data.errors import ForwardError, InputError, SummaryError
from ...results.model_summary import ModelSummary
from ..configured import from_config, is_config
from ..table import summary
from ..weights import is_weights, weights
from .models import WEIGHTS, BuildError, build_model, find, importable, parse_place
from .options import (
    SIZE_HELP,
    Parser,
    add_memory_options,
    add_model_options,
    add_pass_options,
    add_row_options,
    add_table_options,
    one_or_all,
    parse_pairs,
    parse_sizes,
    saved,
    say_commas,
    split,
    step_options,
    with_bare_memory,
)
from .output import fail, plain_warnings, show

if TYPE_CHECKING:
    from ...memory.estimate import Estimate
    from ..step_options import StepOptions

EXAMPLES = """\
examples:
  torchsummary-plus examples/vgg.py:vgg16 3,224,224
  torchsummary-plus torchvision.models:resnet50 3,224,224 --kwargs num_classes=10
  torchsummary-plus examples/llama.py:llama2_70b 4096 --meta --style tree --depth 2
  torchsummary-plus my_models.py:TwoInputs 3,64,64 10 --dtypes float32,int64
  torchsummary-plus examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --gpu "RTX 4090"
  torchsummary-plus examples/gpt2.py:GPT2 1024 --autocast bfloat16 --optimizer adamw --gpu "A100 40GB" --max-batch
  torchsummary-plus train.py:build 8192 --world-size 64 --optimizer adamw --gpu H100  (build() wraps the model)
  torchsummary-plus examples/vgg.py:vgg16  (without a size: names and parameters only)
  torchsummary-plus ./Llama-3.1-70B 4096 --style tree --depth 4  (a folder with config.json: no weights needed)
  torchsummary-plus model.safetensors --depth 2  (tensors, from the header alone)
  torchsummary-plus compare examples/vgg.py:vgg16 examples/vgg.py:vgg19 3,224,224 --depth 1
  torchsummary-plus fit examples/resnet.py:resnet50 3,224,224 --batch-size 64 --gpus "RTX 4090,H100"
"""


CURE_OF_EXIT = "; a file that is also a script runs its own part under if __name__ == '__main__':"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on ``argv`` (default: the command line) and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser, run = summary_parser(), table
    if words[:1] == ["compare"]:
        from .compare import compare_parser, comparison  # Imported here: a plain table starts faster without it.

        parser, run, words = compare_parser(), comparison, words[1:]
    elif words[:1] == ["fit"]:
        from .fit import fit_parser, fitting

        parser, run, words = fit_parser(), fitting, words[1:]
    arguments = parser.parse_intermixed_args(with_bare_memory(words))
    arguments.stream = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr), plain_warnings():  # The model's own prints are not of the table.
            text = run(arguments)
    except InputError as error:
        return fail(error, 2)
    except ForwardError as error:
        say_commas(error, getattr(arguments, "sizes", ()))
        return fail(error, 1)
    except SummaryError as error:
        return fail(error, 1)
    except SystemExit as error:
        return fail(BuildError(f"the code of MODEL called sys.exit({error.code!r}){CURE_OF_EXIT}"), 1)
    return show(text)


def summary_parser() -> argparse.ArgumentParser:
    """Return the parser of the main command."""
    parser = Parser(
        prog="torchsummary-plus",
        description="Print the layer table of a PyTorch model: shapes, parameters, multiply-adds, memory. "
        "To compare models, see torchsummary-plus compare --help; to see what fits which GPU, fit --help.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    kinds = (
        "package.module:callable, path/to/file.py:callable, a folder with transformers' config.json, or a "
        f"{WEIGHTS} file"
    )
    parser.add_argument("model", metavar="MODEL", help=kinds)
    parser.add_argument("sizes", metavar="SIZE", nargs="*", default=[], help=SIZE_HELP)
    add_model_options(parser)
    add_pass_options(parser)
    add_table_options(parser)
    add_row_options(parser)
    group = add_memory_options(parser)
    group.add_argument("--max-batch", action="store_true", help="also find the largest batch that fits in --gpu")
    group.add_argument("--world-size", metavar="N", type=int, help="number of ranks; MODEL builds and wraps the model")
    group.add_argument("--rank", metavar="N", type=int, default=0, help="the rank to estimate; default: 0")
    return parser


def table(arguments: argparse.Namespace) -> str:
    """Return the table for parsed arguments. Raises :class:`SummaryError`."""
    if is_weights(arguments.model) and not is_config(arguments.model):
        stored = weights(arguments.model)
        return "\n".join([stored.to_text(depth=arguments.depth or ...), *saved(stored, arguments.output)])
    if arguments.max_batch and arguments.gpu is None:
        raise InputError("--max-batch needs --gpu: the memory that the batch must fit in")
    if arguments.time and arguments.gpu is None:
        raise InputError("--time needs --gpu: the GPU that the step runs on")
    if arguments.world_size is not None:
        return rank_table(arguments, parse_place(arguments.model))
    memory = memory_options(arguments)
    with named_model(arguments) as model:
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
            rows=split(arguments.rows),
            repeats=arguments.repeats,
            col_width=arguments.col_width,
        )
        answers = [] if arguments.gpu is None else answers_of(arguments, result, model, sizes, dtypes, memory)
    return "\n".join([result.to_terminal(arguments.stream), *answers, *saved(result, arguments.output)])


@contextlib.contextmanager
def named_model(arguments: argparse.Namespace) -> Iterator[Any]:
    """Yield the model named on the command line; files beside its own can be imported inside the block."""
    kwargs = parse_pairs(arguments.kwargs)
    if is_config(arguments.model):
        yield from_config(arguments.model, **kwargs)
        return
    place = parse_place(arguments.model)
    with importable(place):
        yield build_model(find(*place), kwargs, arguments.meta)


def rank_table(arguments: argparse.Namespace, place: tuple[str, str]) -> str:
    """Return the memory of one rank's step, whose builder is MODEL. Raises :class:`SummaryError`."""
    from ..memory import estimate_memory, max_batch_size

    step = memory_options(arguments)
    world = {"world_size": arguments.world_size, "rank": arguments.rank, "device": arguments.device}
    with importable(place):
        build = partial(find(*place), **parse_pairs(arguments.kwargs))
        sizes, dtypes = parse_sizes(arguments.sizes), one_or_all(split(arguments.dtypes))
        request: dict[str, Any] = {"dtypes": dtypes, "options": step, **world}
        estimate = estimate_memory(build, sizes, max(1, arguments.batch_size), **request)
        lines = [str(estimate)]
        if arguments.gpu is not None:
            lines += fit_lines(estimate, arguments.gpu)
        if arguments.time:
            lines.append(str(estimate.time(arguments.gpu)))
        if arguments.max_batch:
            lines.append(str(max_batch_size(build, sizes, arguments.gpu, **request)))
    return "\n".join([*lines, *saved(estimate, arguments.output)])


def memory_options(arguments: argparse.Namespace) -> StepOptions | None:
    """Return the step's options with the GPU that ``--gpu`` names; None if no estimate is wanted."""
    step = step_options(arguments)
    if arguments.gpu is None or step is None:
        return step
    from ...memory.gpus import named_gpu
    from ...memory.other_devices import other_device

    gpu_model = named_gpu(arguments.gpu)
    default = "cuda" if other_device(arguments.gpu) is None else "cpu"
    return replace(step, device=arguments.device or default, gpu=None if gpu_model is None else gpu_model.name)


def answers_of(
    arguments: argparse.Namespace,
    result: ModelSummary,
    model: Any,
    sizes: Any,
    dtypes: Any,
    options: StepOptions | None,
) -> list[str]:
    """Return the lines that say whether the step fits in an amount of memory, and the largest batch that does."""
    from ..memory import max_batch_size  # Imported here: a plain table starts faster without it.

    assert result.memory is not None  # ``--gpu`` implies an estimate.
    lines = fit_lines(result.memory, arguments.gpu)
    if arguments.time:
        lines.append(str(result.memory.time(arguments.gpu)))
    if arguments.max_batch:
        lines.append(str(max_batch_size(model, sizes, arguments.gpu, dtypes=dtypes, options=options)))
    return lines


def fit_lines(estimate: Estimate, gpu: str) -> list[str]:
    """Return whether the step fits in ``--gpu``, unless the estimate says so because it is a GPU's name."""
    return [] if estimate.info.gpu else [f"Fits in {gpu}: {estimate.fits(gpu)}"]
