"""Figures: a result's main plot as PDF, SVG and PNG."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from .views import register_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Figures(ABC):
    """A result's main figure as a file; options are those of its plot method, without ``ax``."""

    __slots__ = ()

    @abstractmethod
    def _draw(self, *args: Any, **options: Any) -> Axes:
        """Draw the main figure at the first argument, a :data:`Place`."""

    def to_pdf(self, **options: Any) -> bytes:
        """Return the main figure as PDF, with embedded TrueType fonts."""
        return self._file("pdf", options)

    def to_svg(self, **options: Any) -> bytes:
        """Return the main figure as SVG, with text kept as text."""
        return self._file("svg", options)

    def to_png(self, **options: Any) -> bytes:
        """Return the main figure as PNG at 300 dpi."""
        return self._file("png", options)

    def _file(self, kind: str, options: dict[str, Any]) -> bytes:
        from ..render.figure import figure_file

        width = options.pop("width", None)
        return figure_file(lambda place: self._draw(place, **options), kind, width)


register_format(".pdf", "to_pdf")
register_format(".svg", "to_svg")
register_format(".png", "to_png")
