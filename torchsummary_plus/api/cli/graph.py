"""``torchsummary-plus graph MODEL SIZE``: the calls of a model and the tensors between them."""

from __future__ import annotations

import argparse

from .models import named_model
from .options import (
    Parser,
    add_model,
    add_output_option,
    add_pass_options,
    need_sizes,
    parse_sizes,
)
from .output import Answer, saved

EXAMPLES = """\
torchsummary-plus graph examples/resnet.py:resnet18 3,224,224 --depth 1 -o resnet18.svg
torchsummary-plus graph examples/resnet.py:resnet18 3,224,224 --depth 1 -o resnet18.mmd  (Mermaid, as GitHub draws it)
torchsummary-plus graph google-bert/bert-base-cased 128 --depth 2 -o bert.dot"""


def graph_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        "graph", "MODEL SIZE ...", "List the calls of a PyTorch model and what they read, or draw them.", EXAMPLES
    )
    add_model(parser)
    add_pass_options(parser)
    group = parser.add_argument_group("graph")
    group.add_argument("--depth", metavar="N", type=int, help="deepest level with nodes of its own; default: all")
    group.add_argument("--repeats", default="fold", help="fold or show equal neighbours; default: fold")
    add_output_option(parser, ".svg, .dot, .mmd, .html, .json, ...")
    return parser


def drawing(arguments: argparse.Namespace) -> Answer:
    """Return the tables of nodes and edges for parsed arguments. Raises :class:`SummaryError`."""
    from ..graph import graph

    need_sizes(arguments, "a graph")
    with named_model(arguments.model, arguments) as model:
        result = graph(
            model,
            parse_sizes(arguments.sizes),
            arguments.batch_size,
            arguments.device,
            arguments.dtypes,
            depth=arguments.depth,
            repeats=arguments.repeats,
            mode=arguments.mode,
            run=arguments.run,
        )
    return Answer("\n".join([str(result), *saved(result, arguments.output)]))
