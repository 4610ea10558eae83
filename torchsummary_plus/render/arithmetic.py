"""Integer arithmetic that can be written out: expressions with their value, text and LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

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


def product(*factors: Term) -> Expr:
    """Multiply factors in order.

    >>> product(2, total(3, 4)).latex
    '2 \\\\times \\\\left(3 + 4\\\\right)'
    """
    parts = [_expr(factor) for factor in factors]
    if len(parts) == 1:
        return parts[0]
    text = " x ".join(_text(part, PRODUCT) for part in parts)
    latex = r" \times ".join(_latex(part, PRODUCT) for part in parts)
    return Expr(prod(part.value for part in parts), text, latex, PRODUCT)


def total(*terms: Term) -> Expr:
    """Add terms in order."""
    parts = [_expr(term) for term in terms]
    if len(parts) == 1:
        return parts[0]
    value, text, latex = sum(p.value for p in parts), " + ".join(map(str, parts)), " + ".join(p.latex for p in parts)
    return Expr(value, text, latex, SUM)


def minus(whole: Term, *subtrahends: Term) -> Expr:
    """Subtract terms in order.

    >>> minus(9, total(2, 3), 1).equation
    '9 - (2 + 3) - 1 = 3'
    """
    first, parts = _expr(whole), [_expr(part) for part in subtrahends]
    value = first.value - sum(part.value for part in parts)
    text = " - ".join([first.text, *(_text(part, PRODUCT) for part in parts)])
    latex = " - ".join([first.latex, *(_latex(part, PRODUCT) for part in parts)])
    return Expr(value, text, latex, SUM)


def quotient(whole: Term, by: Term, up: bool = False) -> Expr:
    """Divide, rounding down (or up) if there is a remainder.

    >>> quotient(minus(7, 2), 2).equation, quotient(6, 3).text, quotient(7, 2, up=True).equation
    ('floor((7 - 2) / 2) = 2', '6 / 3', 'ceil(7 / 2) = 4')
    """
    a, b = _expr(whole), _expr(by)
    text = f"{_text(a, PRODUCT)} / {_text(b, ATOM)}"
    latex = rf"\frac{{{a.latex}}}{{{b.latex}}}"
    if a.value % b.value == 0:
        return Expr(a.value // b.value, text, latex, PRODUCT)
    word, value = ("ceil", -(-a.value // b.value)) if up else ("floor", a.value // b.value)
    return Expr(value, f"{word}({text})", rf"\left\l{word} {latex} \right\r{word}", PRODUCT)


def _expr(term: Term) -> Expr:
    return number(term) if isinstance(term, int) else term


def _text(part: Expr, most: int) -> str:
    """Return a part's text, in parentheses if its rank is above ``most``."""
    return f"({part.text})" if part.rank > most else part.text


def _latex(part: Expr, most: int) -> str:
    return rf"\left({part.latex}\right)" if part.rank > most else part.latex
