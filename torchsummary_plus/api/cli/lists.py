"""``torchsummary-plus gpus`` and ``torchsummary-plus columns``: the names that options accept."""

from __future__ import annotations

import argparse
import re

from ...data.units import GIB
from ...render.columns import COLUMNS
from ...table.columns import default_names
from .options import Parser
from .output import Answer


def gpus_parser() -> Parser:
    """Return the parser of the command that lists GPUs."""
    examples = "torchsummary-plus gpus\ntorchsummary-plus gpus 4090"
    parser = Parser("gpus", "[WORD]", "List the GPUs that --gpu and --gpus accept, and their memory.", examples)
    parser.add_argument("word", metavar="WORD", nargs="?", default="", help="only names with this in them")
    return parser


def list_of_gpus(arguments: argparse.Namespace) -> Answer:
    """Return a line per GPU: its name, memory, what a program can use of it, and its architecture."""
    from ...memory.gpus import GPUS
    from ...memory.other_devices import AMD, INTEL

    lines = [
        f"{gpu.name:<22} {gpu.datasheet_gb:>4} GB  {gpu.usable_bytes / GIB:>6.2f} GiB usable  {gpu.architecture}"
        for gpu in GPUS.values()
    ]
    for maker, devices in (("AMD", AMD), ("Intel", INTEL)):
        lines += [f"{name:<22} {gb:>4} GB  {maker}, kernels not modelled" for name, gb in devices.items()]
    lines.append("M2 Max 32GB (and so on)       Apple, kernels not modelled")
    return Answer("\n".join(line for line in lines if arguments.word.lower() in line.lower()))


def columns_parser() -> Parser:
    """Return the parser of the command that lists columns."""
    return Parser("columns", "", "List the columns that --columns accepts.", "torchsummary-plus columns")


def list_of_columns(arguments: argparse.Namespace) -> Answer:
    """Return a line per column: its name and what it shows."""
    width = max(map(len, COLUMNS))
    lines = [f"{name:<{width}}  {_about(name)}" for name in COLUMNS]
    return Answer("\n".join([*lines, f"Shown by default: {', '.join(default_names(False, False))}"]))


def _about(name: str) -> str:
    """Return what a column shows, without the marks of Markdown."""
    column = COLUMNS[name]
    text = re.sub(r"\[([^]]+)\]\([^)]*\)|`", r"\1", column.about)
    return f"with --memory: {text}" if column.of_memory else text
