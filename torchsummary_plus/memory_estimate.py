"""MemoryEstimate: the memory of a step, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .memory.estimate import Estimate
from .render.memory_text import estimate_text


@dataclass(frozen=True, repr=False)
class MemoryEstimate(Estimate):
    """The result of :func:`estimate_memory`: frozen data in bytes, shown by ``str()``."""

    def render(self, width: int = 64) -> str:
        """The estimate as text, ruled with so many dashes."""
        return estimate_text(self, width)

    def __str__(self) -> str:
        return self.render()

    __repr__ = __str__


def as_memory_estimate(estimate: Estimate) -> MemoryEstimate:
    """An estimate with a way to show it."""
    return MemoryEstimate(**{one.name: getattr(estimate, one.name) for one in fields(Estimate)})
