"""``torchsummary-plus MODEL SIZE``: the table of a model, and the memory of a step below it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...data.errors import InputError
from ...data.model_configs import is_config
from .budgets import add_budget_options, exceeded
from .models import WEIGHTS, find, importable, named_model, parse_pairs, parse_place
from .options import (
    Parser,
    add_memory_options,
    add_model,
    add_output_option,
    add_pass_options,
    add_row_options,
    add_table_options,
    memory_options,
    need_sizes,
    parse_sizes,
)
from .output import Answer, saved

if TYPE_CHECKING:
    from ...results.memory_estimate import MemoryEstimate
    from ...results.model_summary import ModelSummary

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
    parser = Parser(
        "",
        "MODEL [SIZE ...]",
        "Print the layer table of a PyTorch model: shapes, parameters, multiply-adds, memory.",
        EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_model(parser, f", or a {WEIGHTS} file")
    add_pass_options(parser)
    add_table_options(parser)
    add_row_options(parser)
    group = add_memory_options(parser)
    group.add_argument("--max-batch", action="store_true", help="also find the largest batch that fits in --gpu")
    group.add_argument("--time", action="store_true", help="also print how long the step takes on --gpu")
    group.add_argument("--world-size", metavar="N", type=int, help="number of ranks; MODEL builds and wraps the model")
    group.add_argument("--rank", metavar="N", type=int, default=0, help="the rank to estimate; default: 0")
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
        return weights_table(arguments)
    if arguments.world_size is not None:
        return rank_table(arguments)
    look = {
        "depth": arguments.depth,
        "col_names": arguments.columns,
        "style": arguments.style,
        "functional": arguments.functional,
        "rows": arguments.rows,
        "repeats": arguments.repeats,
        "col_width": arguments.col_width,
    }
    with summarised(arguments, look) as (result, model):
        answers = [] if result.memory is None else step_lines(arguments, result.memory, model)
    lines = [result.to_terminal(arguments.stream), *answers, *saved(result, arguments.output)]
    return Answer("\n".join(lines), exceeded(arguments, result, result.memory))


@contextmanager
def summarised(arguments: argparse.Namespace, look: Mapping[str, Any]) -> Iterator[tuple[ModelSummary, Any]]:
    """Yield the summary of MODEL, and the model; ``look`` has the options of the table.

    Options are checked before the model is built. Files beside its own can be imported inside the block.
    """
    from ..table import summary

    if arguments.max_mult_adds is not None:
        need_sizes(arguments, "--max-mult-adds")
    memory, sizes = memory_options(arguments), parse_sizes(arguments.sizes)
    with named_model(arguments.model, arguments) as model:
        result = summary(
            model,
            sizes,
            arguments.batch_size,
            arguments.device,
            arguments.dtypes,
            mode=arguments.mode,
            run=arguments.run,
            memory=memory,
            verbose=0,
            **look,
        )
        yield result, model


def weights_table(arguments: argparse.Namespace) -> Answer:
    """Return the table of a file of weights. Raises :class:`SummaryError`."""
    from ..weights import weights

    if (arguments.max_mult_adds, arguments.max_memory, arguments.gpu) != (None, None, None):
        raise InputError(f"{arguments.model} has weights and no forward, so nothing of it runs; accepted: --max-params")
    stored = weights(arguments.model)
    lines = [stored.to_text(depth=arguments.depth or ...), *saved(stored, arguments.output)]
    return Answer("\n".join(lines), exceeded(arguments, stored, None))


def rank_table(arguments: argparse.Namespace) -> Answer:
    """Return the memory of one rank's step, whose builder is MODEL. Raises :class:`SummaryError`."""
    from ..memory import estimate_memory

    if (arguments.max_params, arguments.max_mult_adds) != (None, None):
        raise InputError("--max-params and --max-mult-adds count a whole model; leave out --world-size")
    world = {"world_size": arguments.world_size, "rank": arguments.rank, "device": arguments.device}
    place = parse_place(arguments.model)
    with importable(place):
        build = partial(find(*place), **parse_pairs(arguments.kwargs))
        sizes, dtypes = parse_sizes(arguments.sizes), arguments.dtypes
        request: dict[str, Any] = {"dtypes": dtypes, "options": memory_options(arguments), **world}
        estimate = estimate_memory(build, sizes, max(1, arguments.batch_size), **request)
        lines = [str(estimate), *step_lines(arguments, estimate, build, **world)]
    return Answer("\n".join([*lines, *saved(estimate, arguments.output)]), exceeded(arguments, None, estimate))


def step_lines(arguments: argparse.Namespace, estimate: MemoryEstimate, model: Any, **world: Any) -> list[str]:
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
