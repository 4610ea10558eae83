"""A tracker's points -> text, in the layout of Pytorch-Memory-Utils."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.tracking_records import TensorGroup, TrackPoint
from ..data.units import one_line, size_text

MOST_OWNERS = 3
"""Maximum number of owners named on a line."""


def opening_text(point: TrackPoint) -> str:
    """Return the first line of a report."""
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
