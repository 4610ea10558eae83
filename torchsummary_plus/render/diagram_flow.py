"""A report -> a Mermaid flowchart: the calls in order, nested, with repeated calls drawn once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from ..data.units import structure_text
from ..report.report import Report, Row
from .diagram_text import counted, safe


@dataclass(eq=False)
class _Step:
    """A call or a container, with the calls inside it; steps that look the same share a value of ``alike``."""

    row: Row
    inside: list[_Step] = field(default_factory=list)
    alike: int = -1


def flow_lines(report: Report, depth: int) -> list[str]:
    """Return the lines of a flowchart of the calls down to ``depth``, in the order they began."""
    lines = ["flowchart TB", f'    given(["input {safe(structure_text(report.inputs))}"])']
    order = ["given"]
    stack: list[tuple[_Step, int, str, int] | str] = [(_steps(report, depth), 1, "", 0)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            lines.append(item)
            continue
        step, times, until, level = item
        pad = "    " * (level + 1)
        title = _title(step.row, times, until)
        if not step.inside:
            order.append(f"n{step.row.index}")
            lines.append(f"{pad}{order[-1]}{_node(step.row, title)}")
            continue
        lines += [f'{pad}subgraph s{step.row.index}["{title}"]', f"{pad}    direction TB"]
        stack.append(f"{pad}end")
        stack += [(first, number, last, level + 1) for first, number, last in reversed(list(_runs(step.inside)))]
    lines += [f"    {one} --> {other}" for one, other in pairwise(order)]
    return lines


def _steps(report: Report, depth: int) -> _Step:
    """Return the tree of calls down to ``depth``."""
    steps: dict[int | None, _Step] = {}
    for row in report.rows:
        if row.depth <= depth and (row.called or row.kind == "container"):
            steps[row.index] = _Step(row)
            if row.parent is not None:
                steps[row.parent].inside.append(steps[row.index])
    seen: dict[Hashable, int] = {}
    for step in reversed(steps.values()):
        row = step.row
        inside = tuple((one.row.var_name, one.alike) for one in step.inside)
        look = (row.class_name, row.total_params, structure_text(row.inputs), structure_text(row.outputs), inside)
        step.alike = seen.setdefault(look, len(seen))
    return steps[0]


def _runs(steps: Sequence[_Step]) -> Iterator[tuple[_Step, int, str]]:
    """Yield the runs of consecutive steps that look the same: the first step, their number, the last one's name."""
    for _, found in groupby(steps, key=lambda step: step.alike):
        run = list(found)
        yield run[0], len(run), run[-1].row.var_name


def _title(row: Row, times: int, until: str) -> str:
    """Return a step's title: its name and class; for a run, the first and last name and the number of repeats."""
    names = f"{row.var_name} to {until}" if until and until != row.var_name else row.var_name
    return safe(f"{names}: {row.class_name}" if names else row.class_name) + (f" x {times:,}" if times > 1 else "")


def _node(row: Row, title: str) -> str:
    """Return a node with the call's output shape and parameters; rounded for a function."""
    shape = structure_text(row.outputs)
    lines = [title, safe(shape), *([counted(row.total_params)] if row.total_params else [])]
    text = "<br/>".join(lines)
    return f'(["{text}"])' if row.kind == "function" else f'["{text}"]'
