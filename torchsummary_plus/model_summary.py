"""ModelSummary: the numbers of a summary, and every way to look at them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from types import EllipsisType
from typing import TYPE_CHECKING

from .render.text import render
from .report import Report

if TYPE_CHECKING:  # A table alone is quicker without the memory engine.
    from .memory_estimate import MemoryEstimate


@dataclass(frozen=True)
class View:
    """How a summary is shown unless asked otherwise."""

    style: str = "torchsummary"
    depth: int | None = None
    col_names: tuple[str, ...] | None = None


@dataclass(frozen=True, repr=False)
class ModelSummary(Report):
    """The result of :func:`summary`: frozen data, shown by ``str()`` and shown otherwise by :meth:`render`.

    It holds no tensor and no module, so it outlives the model, pickles, and compares by value.
    """

    view: View = field(default_factory=View)
    memory: MemoryEstimate | None = None
    """The memory of a step, where ``summary`` was asked for it."""

    def render(
        self,
        *,
        style: str | None = None,
        depth: int | EllipsisType | None = ...,
        col_names: Iterable[str] | EllipsisType | None = ...,
    ) -> str:
        """The table with another style, depth or other columns; the model is not run again.

        What is not given stays as the summary was made; ``depth=None`` is every depth, ``col_names=None`` the default
        columns. Raises :class:`InputError` for an unknown style, depth or column.
        """
        view = self.view
        table = render(
            self,
            view.style if style is None else style,
            view.depth if isinstance(depth, EllipsisType) else depth,
            view.col_names if isinstance(col_names, EllipsisType) else col_names,
        )
        if self.memory is None:
            return table
        return f"{table}\n{self.memory.render(len(table.splitlines()[-1]))}"

    def __str__(self) -> str:
        return self.render()

    __repr__ = __str__


def as_summary(report: Report, view: View) -> ModelSummary:
    """A report with a way to show it."""
    return ModelSummary(**{one.name: getattr(report, one.name) for one in fields(Report)}, view=view)
