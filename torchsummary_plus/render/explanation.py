"""Explanation: a layer's figures with the arithmetic behind them, as text and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..data.records import TensorSpec
from ..data.units import in_unit, one_line
from ..formats.latex import escape
from ..formats.text import printable
from ..memory.capacity import BatchSizeLimit

ATOM, PRODUCT, SUM = range(3)


@dataclass(frozen=True, slots=True)
class Expr:
    """An integer and the arithmetic behind it."""

    value: int
    text: str
    latex: str
    rank: int = ATOM

    def __str__(self) -> str:
        return self.text

    @property
    def equation(self) -> str:
        """The expression and its value; the value alone if there is no arithmetic.

        >>> product(total(product(3, 3, 3, 1), 1), 30).equation
        '(3 x 3 x 3 x 1 + 1) x 30 = 840'
        """
        return self.text if self.rank == ATOM else f"{self.text} = {self.value:,}"


Term = Expr | int


def number(value: int) -> Expr:
    """Return an integer as an expression."""
    text = f"{value:,}"
    return Expr(value, text, text.replace(",", "{,}"))


def _term(term: Term, most: int = SUM) -> Expr:
    """Return a term as an expression, in parentheses if its rank is above ``most``."""
    expr = number(term) if isinstance(term, int) else term
    return expr if expr.rank <= most else Expr(expr.value, f"({expr.text})", rf"\left({expr.latex}\right)")


def _joined(value: int, sign: str, latex_sign: str, rank: int, parts: Sequence[Expr]) -> Expr:
    text, latex = sign.join(part.text for part in parts), latex_sign.join(part.latex for part in parts)
    return Expr(value, text, latex, rank)


def product(*factors: Term) -> Expr:
    """Multiply factors in order.

    >>> product(2, total(3, 4)).latex
    '2 \\\\times \\\\left(3 + 4\\\\right)'
    """
    if len(factors) == 1:
        return _term(factors[0])
    parts = [_term(factor, PRODUCT) for factor in factors]
    return _joined(prod(part.value for part in parts), " x ", r" \times ", PRODUCT, parts)


def total(*terms: Term) -> Expr:
    """Add terms in order."""
    parts = [_term(term) for term in terms]
    return parts[0] if len(parts) == 1 else _joined(sum(part.value for part in parts), " + ", " + ", SUM, parts)


def minus(whole: Term, *subtrahends: Term) -> Expr:
    """Subtract terms in order.

    >>> minus(9, total(2, 3), 1).equation
    '9 - (2 + 3) - 1 = 3'
    """
    parts = [_term(whole), *(_term(part, PRODUCT) for part in subtrahends)]
    return _joined(2 * parts[0].value - sum(part.value for part in parts), " - ", " - ", SUM, parts)


def quotient(whole: Term, by: Term, up: bool = False) -> Expr:
    """Divide, rounding down (or up) if there is a remainder.

    >>> quotient(minus(7, 2), 2).equation, quotient(6, 3).text, quotient(7, 2, up=True).equation
    ('floor((7 - 2) / 2) = 2', '6 / 3', 'ceil(7 / 2) = 4')
    """
    a, b = _term(whole), _term(by)
    text = f"{_term(a, PRODUCT)} / {_term(b, ATOM)}"
    latex = rf"\frac{{{a.latex}}}{{{b.latex}}}"
    if a.value % b.value == 0:
        return Expr(a.value // b.value, text, latex, PRODUCT)
    word, value = ("ceil", -(-a.value // b.value)) if up else ("floor", a.value // b.value)
    return Expr(value, f"{word}({text})", rf"\left\l{word} {latex} \right\r{word}", PRODUCT)


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
    engine: BatchSizeLimit | None = None
    """The answer of :func:`max_batch_size`, to compare a batch by the formula with."""

    def step(self, name: str) -> ExplainedFigure | None:
        """Return a figure with its arithmetic; None if there is none of this name."""
        return next((step for step in self.steps if step.name == name), None)

    def __getitem__(self, name: str) -> int:
        if (step := self.step(name)) is None:
            raise KeyError(name)
        return step.expr.value

    def __iter__(self) -> Iterator[str]:
        return iter([step.name for step in self.steps])

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        text = printable("\n".join(map(one_line, [self.title, *(f"  {step}" for step in self.steps)])))
        return text if self.engine is None else f"{text}\nBy max_batch_size: {self.engine}"

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
