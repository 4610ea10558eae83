"""A squarified treemap of an estimate's peak by module; areas are proportional to bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..data.units import in_unit, size_text
from ..memory.attribution import parents
from ..memory.estimate import Estimate
from .memory_tables import kind_label

SMALLEST = 1 / 350  # Minimum size of a tile with room for a label, as a share of the peak; smaller siblings are merged.

LEAST_WIDTH, LEAST_HEIGHT = 21.0, 18.0
"""Minimum width and height of a tile: room for three letters on each line, in the smallest font."""

LARGE = 1600.0  # Tiles of at least this area are never merged.
HEAD = 15.0  # The height of a frame's heading.
FRAMES = 3  # The deepest nesting of frames; deeper modules are tiles only.
OTHER = "."  # The stage of what belongs to none; no module has this path.
ROOT = "root itself"  # What the root's own memory is called.


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Tile:
    """A module's own bytes, or a frame around its submodules, whose ``stage`` is None.

    The stage of others is the path of the part of the model that they belong to, of :func:`stages`, or ``OTHER``.
    ``tip`` has the lines of its tooltip.
    """

    box: Box
    path: str
    label: str
    size: str
    stage: str | None
    tip: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a module's bytes: a submodule by number, or -1 and the text of a tile."""

    nbytes: int
    module: int = -1
    path: str = ""
    label: str = ""
    kinds: tuple[tuple[str, int], ...] = ()
    count: int = 1


def squarified(areas: Sequence[float], box: Box) -> list[Box]:
    """Divide a box into nearly square boxes in proportion to ``areas`` (descending, above 0).

    Bruls, Huizing and van Wijk, "Squarified treemaps" (2000).

    >>> [(box.x, box.width) for box in squarified([3, 1], Box(0, 0, 4, 2))]
    [(0, 3.0), (3.0, 1.0)]
    """
    sums = [0.0, *accumulate(areas)]
    scale = box.width * box.height / sums[-1] if areas else 0.0

    def worst(start: int, stop: int, side: float) -> float:
        """Return the worst aspect ratio of ``areas[start:stop]`` laid out along a side."""
        whole = (sums[stop] - sums[start]) * scale
        if not side or not whole:
            return 1.0
        return max(side**2 * areas[start] * scale / whole**2, whole**2 / (side**2 * areas[stop - 1] * scale))

    boxes: list[Box] = []
    while len(boxes) < len(areas):
        start, is_wide = len(boxes), box.width >= box.height
        side, room = sorted((box.width, box.height))
        stop = start + 1
        while stop < len(areas) and worst(start, stop + 1, side) <= worst(start, stop, side):
            stop += 1
        strip = sums[stop] - sums[start]
        depth = room if stop == len(areas) else min(room, strip * scale / side if side else 0.0)
        along = 0.0
        for area in areas[start:stop]:
            length = side * area / strip if strip else 0.0
            across, down, size = (0, along, (depth, length)) if is_wide else (along, 0, (length, depth))
            boxes.append(Box(box.x + across, box.y + down, *size))
            along += length
        across, down = (depth, 0) if is_wide else (0, depth)
        box = Box(box.x + across, box.y + down, max(0.0, box.width - across), max(0.0, box.height - down))
    return boxes


def stages(estimate: Estimate, most: int) -> list[str]:
    """Return the paths of the ``most`` largest parts of a model, in its order: the root's submodules, and the root.

    Where a wrapper alone holds memory, they are its submodules.
    """
    modules, inside = estimate.by_module, _inside(estimate)
    top = 0
    while True:
        parts = [index for index in inside[top] if modules[index].inclusive_bytes]
        if len(parts) != 1 or not inside[parts[0]] or _own(estimate, top):
            break
        top = parts[0]
    sizes = {modules[index].path: modules[index].inclusive_bytes for index in parts}
    if not top and _own(estimate, 0):
        sizes = {"": _own(estimate, 0), **sizes}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:most]
    return [path for path in sizes if path in largest]


def _own(estimate: Estimate, index: int) -> int:
    """Return the bytes that a module itself holds; those outside any module count at the root."""
    return estimate.by_module[index].own_bytes - (0 if index else estimate.outside_bytes)


def _inside(estimate: Estimate) -> list[list[int]]:
    """Return the submodules of each module."""
    inside: list[list[int]] = [[] for _ in estimate.by_module]
    for index, parent in enumerate(parents([module.path for module in estimate.by_module])):
        if index:
            inside[parent].append(index)
    return inside


def treemap(estimate: Estimate, box: Box, known: Sequence[str]) -> Iterator[Tile]:
    """Yield the tiles of an estimate's peak, each after its enclosing frames and in one of the ``known`` stages."""
    modules, inside = estimate.by_module, _inside(estimate)
    stack = [(0, box, 0)]
    while stack:
        index, place, level = stack.pop()
        path = modules[index].path
        parts = _parts(estimate, index, inside[index])
        if index and level < FRAMES and len(parts) > 1 and place.width > 3 * HEAD and place.height > 3 * HEAD:
            size = size_text(modules[index].inclusive_bytes)
            yield Tile(place, path, _last(path), size, None, (path, f"{size} including submodules"))
            place, level = Box(place.x + 2, place.y + HEAD, place.width - 4, place.height - HEAD - 2), level + 1
        parts = _roomy(parts, path, place)
        for part, area in zip(parts, squarified([part.nbytes for part in parts], place)):
            if part.module >= 0:
                stack.append((part.module, area, level))
                continue
            size = size_text(part.nbytes)
            kinds = sorted(part.kinds, key=lambda item: -item[1])
            tip = [
                part.path if kinds else part.label,
                f"{size}, {100 * part.nbytes / estimate.peak_bytes:.1f}% of the peak",
            ]
            tip += [f"{kind_label(kind)} {' '.join(in_unit(nbytes, 'auto'))}" for kind, nbytes in kinds]
            around = (stage for stage in known if stage and f"{part.path}.".startswith(f"{stage}."))
            stage = next(around, "" if kinds and not part.path and "" in known else OTHER)
            yield Tile(area, part.path, part.label, size, stage, tuple(tip))


def _parts(estimate: Estimate, index: int, inside: Sequence[int]) -> list[_Part]:
    """Return the parts of a module's bytes, largest first; parts too small to see are merged."""
    modules, module, own = estimate.by_module, estimate.by_module[index], _own(estimate, index)
    least = SMALLEST * estimate.peak_bytes
    parts = [_Part(modules[inner].inclusive_bytes, inner) for inner in inside]
    parts.append(_Part(own, -1, module.path, _last(module.path) or ROOT, module.at_peak))
    parts.append(_Part(module.own_bytes - own, label="outside modules"))
    small = [part for part in parts if 0 < part.nbytes < least]
    large = [part for part in parts if part.nbytes >= least and part.nbytes]
    return _merged(large, small, module.path) if small else sorted(large, key=lambda part: -part.nbytes)


def _roomy(parts: Sequence[_Part], path: str, place: Box) -> list[_Part]:
    """Return parts of which small ones are merged until every tile has room for a short name, or one is left."""
    roomy = list(parts)
    scale = place.width * place.height / max(1, sum(part.nbytes for part in roomy))
    while len(roomy) > 1 and roomy[-2].nbytes * scale < LARGE:
        areas = squarified([part.nbytes for part in roomy], place)
        if all(area.width >= LEAST_WIDTH and area.height >= LEAST_HEIGHT for area in areas):
            break
        roomy = _merged(roomy[:-2], roomy[-2:], path)
    return roomy


def _merged(parts: Sequence[_Part], small: Sequence[_Part], path: str) -> list[_Part]:
    """Return parts and one of all small ones, largest first."""
    count = sum(part.count for part in small)
    more = _Part(sum(part.nbytes for part in small), -1, path, f"{count:,} more", count=count)
    return sorted([*parts, more], key=lambda part: -part.nbytes)


def _last(path: str) -> str:
    """Return the last name of a path; for a number, with the name before it.

    >>> _last("model.layers.3"), _last("model.head")
    ('layers.3', 'head')
    """
    names = path.split(".")
    return ".".join(names[-2:]) if names[-1].isdigit() else names[-1]
