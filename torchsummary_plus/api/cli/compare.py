"""``torchsummary-plus compare MODEL MODEL... SIZE``: models side by side."""

from __future__ import annotations

import argparse
import re
from contextlib import ExitStack

from .models import named_model
from .options import (
    MODEL_HELP,
    SIZE_HELP,
    Parser,
    add_memory_options,
    add_model_options,
    add_output_option,
    add_pass_options,
    add_table_options,
    listed,
    parse_sizes,
    step_options,
)
from .output import Answer, saved

EXAMPLES = """\
torchsummary-plus compare examples/vgg.py:vgg16 examples/vgg.py:vgg19 3,224,224 --changes-only
torchsummary-plus compare examples/resnet.py:resnet18 examples/resnet.py:resnet50 3,224,224 --depth 1 --ratios
torchsummary-plus compare timm:resnet50 timm:convnext_tiny 3,224,224 --depth 1
torchsummary-plus compare my.py:small my.py:large 3,32,32 --optimizer adamw --gpu "RTX 4090" --output models.md"""


def compare_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        "compare",
        "MODEL MODEL ... [SIZE ...]",
        "Compare PyTorch models side by side: totals with the best marked, and aligned layers.",
        EXAMPLES,
    )
    parser.add_argument(
        "words", metavar="MODEL|SIZE", nargs="+", help=f"two or more models: {MODEL_HELP}; then {SIZE_HELP}"
    )
    add_model_options(parser)
    add_pass_options(parser)
    add_table_options(parser)
    add_memory_options(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument("--names", type=listed, metavar="NAME[,NAME...]", help="names to show for the models")
    group.add_argument("--ratios", action="store_true", help="also show ratios to the first model")
    group.add_argument("--changes-only", action="store_true", help="hide layers that all models share")
    add_output_option(parser)
    return parser


def comparison(arguments: argparse.Namespace) -> Answer:
    """Return the tables for parsed arguments. Raises :class:`SummaryError`."""
    from ..compare import compare

    words = [word for word in arguments.words if not _is_size(word)]
    arguments.sizes = [word for word in arguments.words if _is_size(word)]
    names = [re.split("[:/]", word.rstrip("/"))[-1] for word in words]
    with ExitStack() as stack:
        result = compare(
            *[stack.enter_context(named_model(word, arguments)) for word in words],
            input_size=parse_sizes(arguments.sizes),
            batch_size=arguments.batch_size,
            names=arguments.names or (names if len(set(names)) == len(names) else None),
            memory=step_options(arguments),
            device=arguments.device,
            dtypes=arguments.dtypes,
            mode=arguments.mode,
            run=arguments.run,
            functional=arguments.functional,
            style=arguments.style,
            depth=arguments.depth,
            col_names=arguments.columns,
            ratios=arguments.ratios,
            changes_only=arguments.changes_only,
        )
    return Answer("\n".join([str(result), *saved(result, arguments.output)]))


def _is_size(word: str) -> bool:
    """Return whether a word is a size, as in 3,224,224 or x=10, rather than a model."""
    return re.match(r"([A-Za-z_]\w*=)?[-\d(\[]", word) is not None and not re.search("[:/]", word)
