"""``torchsummary-plus fit MODEL SIZE``: which settings of a training step fit which GPUs."""

from __future__ import annotations

import argparse

from .models import named_model
from .options import (
    Parser,
    add_dtypes,
    add_model,
    add_output_option,
    add_step_options,
    listed,
    need_sizes,
    parse_sizes,
    step_options,
)
from .output import Answer, saved

EXAMPLES = """\
torchsummary-plus fit examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --loss cross_entropy
torchsummary-plus fit examples/gpt2.py:GPT2 1024 --gpus "RTX 4090,A100 40GB" --settings float32,bf16 --loss causal_lm
torchsummary-plus fit my.py:net 3,32,32 --output fit.html"""


def fit_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        "fit", "MODEL SIZE ...", "Say which settings of a step fit which GPUs, and up to which batch.", EXAMPLES
    )
    add_model(parser)
    group = parser.add_argument_group("what to try")
    group.add_argument(
        "--gpus", type=listed, metavar="GPU[,GPU...]", help="GPUs by name; default: common ones from 8 to 80 GB"
    )
    group.add_argument(
        "--settings",
        type=listed,
        metavar="NAME[,NAME...]",
        help="float32, bf16, fp16, 8-bit optimizer, ...; default: all",
    )
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
        result = what_if(
            model,
            parse_sizes(arguments.sizes),
            arguments.batch_size,
            arguments.gpus,
            settings=arguments.settings,
            dtypes=arguments.dtypes,
            options=step_options(arguments),
        )
    return Answer("\n".join([str(result), *saved(result, arguments.output)]))
