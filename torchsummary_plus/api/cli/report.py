"""``torchsummary-plus report MODEL SIZE``: everything about a model as one HTML page."""

from __future__ import annotations

import argparse

from .budgets import add_budget_options, exceeded
from .options import Parser, add_memory_options, add_model, add_pass_options
from .output import Answer, writable
from .table import summarised

EXAMPLES = """\
torchsummary-plus report examples/resnet.py:resnet50 3,224,224 -o resnet50.html
torchsummary-plus report examples/resnet.py:resnet50 3,224,224 --batch-size 64 --optimizer adamw --gpu "RTX 4090"
torchsummary-plus report google-bert/bert-base-cased 128 --optimizer adamw -o bert.html"""


def report_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        "report", "MODEL [SIZE ...]", "Write the layers and the memory of a step to one self-contained page.", EXAMPLES
    )
    add_model(parser)
    add_pass_options(parser)
    add_memory_options(parser)
    add_budget_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", default="report.html", help="default: report.html")
    return parser


def reporting(arguments: argparse.Namespace) -> Answer:
    """Write the page for parsed arguments, and return where it is. Raises :class:`SummaryError`."""
    with summarised(arguments, {}) as (result, _), writable(arguments.output):
        path = result.to_html_report(arguments.output)
    return Answer(f"Saved to {path}", exceeded(arguments, result, result.memory))
