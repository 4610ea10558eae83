"""Explanation: a layer's figures with the arithmetic behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from ..data.records import TensorSpec
from ..data.units import in_unit, one_line
from ..formats.latex import escape
from ..formats.printing import printable
from .arithmetic import Expr, number, product


@dataclass(frozen=True, slots=True)
class ExplainedFigure:
    """A figure: its name in data, label, arithmetic, and trailing words."""

    name: str
    label: str
    expr: Expr
    words: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.expr.equation}{f' {self.words}' if self.words else ''}"


@dataclass(frozen=True, repr=False)
class Explanation(Mapping[str, int]):
    """A mapping of figure names to values; ``str()`` and :meth:`to_latex` show the arithmetic."""

    title: str
    steps: tuple[ExplainedFigure, ...]

    def step(self, name: str) -> ExplainedFigure | None:
        """Return a figure with its arithmetic; None if there is none of this name."""
        return next((step for step in self.steps if step.name == name), None)

    def __getitem__(self, name: str) -> int:
        step = self.step(name)
        if step is None:
            raise KeyError(name)
        return step.expr.value

    def __iter__(self) -> Iterator[str]:
        return iter([step.name for step in self.steps])

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        return printable("\n".join(map(one_line, [self.title, *(f"  {step}" for step in self.steps)])))

    __repr__ = __str__

    def to_text(self) -> str:
        """Return the same text as ``str()``: the title and a line per figure."""
        return str(self)

    def to_latex(self) -> str:
        """Return an amsmath ``align*`` environment with a line per figure."""
        lines = []
        for step in self.steps:
            result = "" if step.expr.text == f"{step.expr.value:,}" else f" = {step.expr.value:,}".replace(",", "{,}")
            words = rf"\ \text{{{escape(step.words)}}}" if step.words else ""
            lines.append(rf"\text{{{escape(step.label)}}} &= {step.expr.latex}{result}{words}")
        return "\n".join([r"\begin{align*}", " \\\\\n".join(lines), r"\end{align*}", ""])

    def _repr_latex_(self) -> str:
        return self.to_latex()


def bytes_of(spec: TensorSpec) -> Expr:
    """Return the bytes of a tensor as elements x element size; as a plain number if they are not proportional."""
    elements = prod(spec.shape)
    if not elements or spec.nbytes % elements:
        return number(spec.nbytes)
    return product(*spec.shape, spec.nbytes // elements)


def in_words(nbytes: int) -> str:
    """Return the words after a size in bytes; large sizes also in MiB (1024 x 1024 bytes) and MB (1,000,000 bytes).

    >>> in_words(3360), in_words(993_742_440)
    ('bytes', 'bytes = 947.71 MiB = 993.74 MB')
    """
    if nbytes < 100_000:
        return "bytes"
    return f"bytes = {in_unit(nbytes, 'MiB')[0]} MiB = {in_unit(nbytes, 'MB')[0]} MB"
