"""A tracker's points -> text: a row of a table for each, and in a file the lines of Pytorch-Memory-Utils."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.tracking_records import TensorGroup, TrackPoint
from ..data.units import one_line, size_text
from ..formats.table import shortened

MOST_OWNERS = 3
"""Maximum number of owners named on a line."""


MOST_GROUPS = 5
"""Maximum number of groups of tensors listed below a row."""

ROW = "{:>3}  {:<33}  {:>11}  {:>11}  {:>11}"
"""A row of the printed table, 77 characters wide."""


def table_head(device: str) -> str:
    """Return the title and the headings of the printed table."""
    headings = ROW.format("", "Where", "Live", "Appeared", "Gone")
    return f"Live tensors on {device}\n{headings}\n{'-' * len(headings)}\n"


def table_row(number: int, point: TrackPoint, detail: bool = True) -> str:
    """Return a point's row: its place, the live bytes and the changes, with the largest groups of tensors below it."""
    where = shortened(one_line(f"{point.file}:{point.line} {point.label or point.function}"), 33)
    changes = (("+", point.appeared), ("-", point.gone))
    sums = [sum(group.nbytes for group in groups) for _, groups in changes]
    shown = [f"{sign}{size_text(nbytes)}" if nbytes else "" for (sign, _), nbytes in zip(changes, sums)]
    lines = [ROW.format(number, where, size_text(point.tensor_bytes), *shown).rstrip()]
    for sign, groups in changes if detail else ():
        lines += [one_line(_group(sign, group)) for group in groups[:MOST_GROUPS]]
        others = groups[MOST_GROUPS:]
        if others:
            lines.append(f"     {sign} {len(others):,} more, {size_text(sum(group.nbytes for group in others))}")
    return "".join(f"{line}\n" for line in lines)


def _group(sign: str, group: TensorGroup) -> str:
    count = f"{group.count:,} x " if group.count > 1 else ""
    of = ", ".join(group.owners[:1]) + (f" and {len(group.owners) - 1:,} more" if len(group.owners) > 1 else "")
    return f"     {sign} {count}{group.shape} {group.dtype}, {size_text(group.nbytes)}" + (f": {of}" if of else "")


def opening_text(point: TrackPoint) -> str:
    """Return the first line of a file."""
    return f"GPU Memory Track | {point.time} | {_totals(point)}\n\n"


def point_text(point: TrackPoint, detail: bool = True) -> str:
    """Return what appeared (+) and disappeared (-), aligned, then the call's line with the totals in binary units."""
    changes = [("+", group) for group in point.appeared] + [("-", group) for group in point.gone]
    widths = [max([least, *(len(_cells(group)[place]) for _, group in changes)]) for place, least in enumerate(WIDTHS)]
    where = f"{point.file} line {point.line}: {point.function}" + (f" ({point.label})" if point.label else "")
    where = one_line(where)
    lines = [_change(sign, group, widths) for sign, group in changes] if detail else []
    return "".join(f"{line}\n" for line in [*lines, "", f"At {where:<50} {_totals(point)}", ""])


WIDTHS = (3, 20, 10)
"""Minimum widths of counts, sizes and bytes."""


def _cells(group: TensorGroup) -> tuple[str, str, str]:
    """Return a group's count, size and bytes."""
    return str(group.count), str(group.shape), size_text(group.nbytes)


def _change(sign: str, group: TensorGroup, widths: Sequence[int]) -> str:
    kind = f"<class '{group.class_name}'>"
    owners = list(group.owners[:MOST_OWNERS]) + (["..."] if len(group.owners) > MOST_OWNERS else [])
    count, size, nbytes = _cells(group)
    cells = [
        f"{sign} | {count:>{widths[0]}} * Size:{size:<{widths[1]}}",
        f"Memory: {nbytes:>{widths[2]}}",
        f"{kind:<20}",
        f"torch.{group.dtype}",
        *([", ".join(owners)] if owners else []),
    ]
    return one_line(" | ".join(cells))


def _totals(point: TrackPoint) -> str:
    memory = point.memory
    texts = [f"Total Tensor Used Memory:{size_text(point.tensor_bytes):<11}"]
    for label, nbytes in (
        ("Total Allocated Memory", memory.allocated_bytes),
        ("Reserved Memory", memory.reserved_bytes),
        ("Peak Since Last", memory.peak_bytes),
        ("Device Used Memory", memory.used_bytes),
        ("Process Memory", memory.process_bytes),
    ):
        if nbytes is not None:
            texts.append(f"{label}:{size_text(nbytes):<11}")
    return " ".join(texts)
