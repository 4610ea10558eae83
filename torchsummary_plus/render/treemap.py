"""An estimate's peak by module as nested tiles, which CSS lays out with areas proportional to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..data.units import in_unit, size_text
from ..memory.attribution import parents
from ..memory.estimate import Estimate
from .memory_tables import kind_label

SMALLEST = 1 / 350  # Of the peak: smaller siblings are one tile.
LEAST_FRAME = 1 / 25  # Of the peak: smaller modules with submodules have no heading.
FRAMES = 2  # The deepest nesting of headings.
ROOT = "root itself"  # What the root's own memory is called.


@dataclass(frozen=True, slots=True)
class Tile:
    """A module's own bytes or, with others ``inside``, those of its submodules too; ``tip`` has its tooltip's lines."""

    path: str
    label: str
    nbytes: int
    tip: tuple[str, ...]
    inside: tuple[Tile, ...] = ()
    has_heading: bool = False

    @property
    def name(self) -> str:
        """The path; what belongs to no module has its label."""
        return self.path or self.label

    @property
    def size(self) -> str:
        """The bytes as text."""
        return size_text(self.nbytes)


def treemap(estimate: Estimate) -> tuple[Tile, ...]:
    """Return the tiles of an estimate's peak, in the model's order; their bytes add up to it."""
    modules, peak = estimate.by_module, max(1, estimate.peak_bytes)
    submodules: list[list[int]] = [[] for _ in modules]
    for index, parent in enumerate(parents([module.path for module in modules])):
        if index:
            submodules[parent].append(index)

    def tile(path: str, label: str, nbytes: int, kinds: Sequence[tuple[str, int]] = ()) -> Tile:
        tip = [path if path and kinds else label, f"{size_text(nbytes)}, {100 * nbytes / peak:.1f}% of the peak"]
        held = sorted(kinds, key=lambda kind: -kind[1])
        tip += [f"{kind_label(kind)} {' '.join(in_unit(size, 'auto'))}" for kind, size in held]
        return Tile(path, label, nbytes, tuple(tip))

    def tiles(index: int, frames: int, in_group: bool) -> tuple[Tile, ...]:
        """Return the tiles of a module's bytes inside so many headed ones and, if ``in_group``, one without."""
        path, outside = modules[index].path, 0 if index else estimate.outside_bytes
        itself = tile(path, _last(path) or ROOT, modules[index].own_bytes - outside, modules[index].at_peak)
        both = itself, tile("", "outside modules", outside)
        parts = [part for part in both if part.nbytes >= SMALLEST * peak]
        small = [part.nbytes for part in both if 0 < part.nbytes < SMALLEST * peak]
        for inner in submodules[index]:
            name, nbytes = modules[inner].path, modules[inner].inclusive_bytes
            if nbytes < SMALLEST * peak:
                small += [nbytes] if nbytes else []
                continue
            has_heading = frames < FRAMES and nbytes >= LEAST_FRAME * peak
            within = tiles(inner, frames + has_heading, not has_heading)
            if len(within) > 1 and not (in_group and not has_heading):
                tip = name, f"{size_text(nbytes)} including submodules"
                within = (Tile(name, _last(name), nbytes, tip, within, has_heading),)
            parts += within
        if small:
            parts.append(tile(path, f"{len(small):,} more", sum(small)))
        return tuple(parts)

    return tiles(0, 0, False)


def _last(path: str) -> str:
    """Return the last name of a path; for a number, with the name before it.

    >>> _last("model.layers.3"), _last("model.head")
    ('layers.3', 'head')
    """
    names = path.split(".")
    return ".".join(names[-2:]) if names[-1].isdigit() else names[-1]
