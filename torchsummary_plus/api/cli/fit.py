"""``torchsummary-plus fit MODEL SIZE``: which settings of a training step fit which GPUs."""

from __future__ import annotations

import argparse

from ...memory.gpus import COMMON
from ..what_if import what_if
from .models import build_model, find, importable, parse_place
from .options import (
    SIZE_HELP,
    Parser,
    add_model_options,
    add_step_options,
    one_or_all,
    parse_pairs,
    parse_sizes,
    saved,
    split,
    step_options,
)

EXAMPLES = """\
examples:
  torchsummary-plus fit examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --loss cross_entropy
  torchsummary-plus fit examples/gpt2.py:GPT2 1024 --gpus "RTX 4090,A100 40GB" --settings float32,bf16 --loss causal_lm
  torchsummary-plus fit my.py:net 3,32,32 --output fit.html
"""


def fit_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand."""
    parser = Parser(
        prog="torchsummary-plus fit",
        description="Say which settings of a step fit which GPUs, and up to which batch.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="package.module:callable or path/to/file.py:callable")
    parser.add_argument("sizes", metavar="SIZE", nargs="*", default=[], help=SIZE_HELP)
    add_model_options(parser)
    group = parser.add_argument_group("what to try")
    group.add_argument("--gpus", metavar="GPU[,GPU...]", help=f"GPUs by name; default: {', '.join(COMMON)}")
    group.add_argument(
        "--settings", metavar="NAME[,NAME...]", help="float32, bf16, fp16, 8-bit optimizer, ...; default: all"
    )
    group.add_argument("--batch-size", metavar="N", type=int, default=1, help="samples of a step; default: 1")
    group.add_argument("--dtypes", metavar="DTYPE[,DTYPE...]", help="one dtype for all inputs, or one per input")
    add_step_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="also save to a file: .md, .csv, .html, ...")
    return parser


def fitting(arguments: argparse.Namespace) -> str:
    """Return the table for parsed arguments. Raises :class:`SummaryError`."""
    place = parse_place(arguments.model)
    with importable(place):
        result = what_if(
            build_model(find(*place), parse_pairs(arguments.kwargs), arguments.meta),
            parse_sizes(arguments.sizes),
            arguments.batch_size,
            split(arguments.gpus),
            settings=split(arguments.settings),
            dtypes=one_or_all(split(arguments.dtypes)),
            options=step_options(arguments),
        )
    return "\n".join([str(result), *saved(result, arguments.output)])
