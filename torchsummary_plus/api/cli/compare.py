"""``torchsummary-plus compare MODEL MODEL... SIZE``: models side by side."""

from __future__ import annotations

import argparse

from ..compare import compare
from .models import build_model, find, importable, parse_place
from .options import (
    SIZE_HELP,
    Parser,
    add_memory_options,
    add_model_options,
    add_pass_options,
    add_table_options,
    one_or_all,
    parse_pairs,
    parse_sizes,
    saved,
    split,
    step_options,
)

EXAMPLES = """\
examples:
  torchsummary-plus compare examples/vgg.py:vgg16 examples/vgg.py:vgg19 3,224,224 --changes-only
  torchsummary-plus compare examples/resnet.py:resnet18 examples/resnet.py:resnet50 3,224,224 --depth 1 --ratios
  torchsummary-plus compare my.py:small my.py:large 3,32,32 --optimizer adamw --gpu "RTX 4090" --output models.md
"""


def compare_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand."""
    parser = Parser(
        prog="torchsummary-plus compare",
        description="Compare PyTorch models side by side: totals with the best marked, and aligned layers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places = "two or more of package.module:callable or path/to/file.py:callable"
    parser.add_argument("words", metavar="MODEL|SIZE", nargs="+", help=f"{places}; then {SIZE_HELP}")
    add_model_options(parser)
    add_pass_options(parser)
    add_table_options(parser)
    add_memory_options(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument("--names", metavar="NAME[,NAME...]", help="names to show for the models")
    group.add_argument("--ratios", action="store_true", help="also show ratios to the first model")
    group.add_argument("--changes-only", action="store_true", help="hide layers that all models share")
    return parser


def comparison(arguments: argparse.Namespace) -> str:
    """Return the tables for parsed arguments. Raises :class:`SummaryError`.

    A word with a colon names a model; any other word is a size.
    """
    places = [parse_place(word) for word in arguments.words if ":" in word]
    names = [name for _, name in places]
    with importable(*places):
        kwargs = parse_pairs(arguments.kwargs)
        result = compare(
            *(build_model(find(*place), kwargs, arguments.meta) for place in places),
            input_size=parse_sizes([word for word in arguments.words if ":" not in word]),
            batch_size=arguments.batch_size,
            names=split(arguments.names) or (names if len(set(names)) == len(names) else None),
            memory=step_options(arguments),
            device=arguments.device,
            dtypes=one_or_all(split(arguments.dtypes)),
            mode=arguments.mode,
            run=arguments.run,
            functional=arguments.functional,
            style=arguments.style,
            depth=arguments.depth,
            col_names=split(arguments.columns),
            ratios=arguments.ratios,
            changes_only=arguments.changes_only,
        )
    return "\n".join([str(result), *saved(result, arguments.output)])
