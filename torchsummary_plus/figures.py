"""Figures as files: what a result draws, in the formats of papers and pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from .views import register_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Figures(ABC):
    """The main figure of a result as a file. The options are those of the method that draws it, without ``ax``."""

    __slots__ = ()

    @abstractmethod
    def _draw(self, *args: Any, **options: Any) -> Axes:
        """The main figure, drawn where the first argument, a :data:`Place`, says."""

    def to_pdf(self, **options: Any) -> bytes:
        """The main figure as PDF: vectors, with TrueType fonts in it."""
        return self._file("pdf", options)

    def to_svg(self, **options: Any) -> bytes:
        """The main figure as SVG, whose text stays text."""
        return self._file("svg", options)

    def to_png(self, **options: Any) -> bytes:
        """The main figure as PNG, 300 dots to the inch."""
        return self._file("png", options)

    def _file(self, kind: str, options: dict[str, Any]) -> bytes:
        from .render.figure import figure_file

        return figure_file(lambda place: self._draw(place, **options), kind)


register_format(".pdf", "to_pdf")
register_format(".svg", "to_svg")
register_format(".png", "to_png")
