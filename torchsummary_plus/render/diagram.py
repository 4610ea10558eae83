"""A report -> Mermaid: a class diagram of the model or a flowchart of its calls."""

from __future__ import annotations

from collections.abc import Callable

from ..data.errors import InputError, choice_error
from ..table.columns import check_view
from ..table.rows import Report
from .diagram_classes import class_lines
from .diagram_flow import flow_lines

EDGES = 500
CHARACTERS = 50_000
"""Mermaid's default limits (``maxEdges`` and ``maxTextSize``), which apply on GitHub too."""

KINDS: dict[str, Callable[[Report, int], list[str]]] = {"class": class_lines, "flow": flow_lines}


def mermaid_text(report: Report, kind: str, depth: int | None) -> str:
    """Return a diagram down to ``depth``; None is the deepest within Mermaid's limits. Raises :class:`InputError`."""
    if kind not in KINDS:
        raise choice_error("kind", kind, KINDS)
    check_view("tree", depth, None)
    if kind == "flow" and report.run.kind == "none":
        raise InputError("nothing ran, so there is no flow of calls; pass summary input_size= or input_data=")
    deepest = max(row.depth for row in report.rows)
    for level in range(deepest, -1, -1) if depth is None else [depth]:
        lines = KINDS[kind](report, level)
        if sum("-- " in line or "-->" in line for line in lines) <= EDGES and len("\n".join(lines)) < CHARACTERS:
            break
    return "\n".join([*lines, ""])
