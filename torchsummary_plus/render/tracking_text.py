"""A tracker's points -> text, in the layout of Pytorch-Memory-Utils."""

from __future__ import annotations

from ..data.tracking_records import TensorGroup, TrackPoint
from ..data.units import MIB

MOST_OWNERS = 3
"""The most owners named on a line."""


def opening_text(point: TrackPoint) -> str:
    """Return the first line of a report."""
    return f"GPU Memory Track | {point.time} | {_totals(point)}\n\n"


def point_text(point: TrackPoint, detail: bool = True) -> str:
    """Return what appeared (+) and disappeared (-), then the call's line with the totals; Mb is 1024 x 1024 bytes."""
    changes = [_change("+", group) for group in point.appeared] + [_change("-", group) for group in point.gone]
    where = f"{point.file} line {point.line}: {point.function}" + (f" ({point.label})" if point.label else "")
    lines = changes if detail else []
    return "".join(f"{line}\n" for line in [*lines, "", f"At {where:<50} {_totals(point)}", ""])


def _change(sign: str, group: TensorGroup) -> str:
    kind = f"<class '{group.class_name}'>"
    owners = list(group.owners[:MOST_OWNERS]) + (["..."] if len(group.owners) > MOST_OWNERS else [])
    cells = [
        f"{sign} | {group.count} * Size:{group.shape!s:<20}",
        f"Memory: {str(group.nbytes * 10_000 // MIB / 10_000)[:6]} M",
        f"{kind:<20}",
        f"torch.{group.dtype}",
        *([", ".join(owners)] if owners else []),
    ]
    return " | ".join(cells)


def _totals(point: TrackPoint) -> str:
    memory = point.memory
    texts = [f"Total Tensor Used Memory:{point.tensor_bytes / MIB:<7.1f}Mb"]
    for label, nbytes in (
        ("Total Allocated Memory", memory.allocated_bytes),
        ("Reserved Memory", memory.reserved_bytes),
        ("Peak Since Last", memory.peak_bytes),
        ("Device Used Memory", memory.used_bytes),
        ("Process Memory", memory.process_bytes),
    ):
        if nbytes is not None:
            texts.append(f"{label}:{nbytes / MIB:<7.1f}Mb")
    return " ".join(texts)
