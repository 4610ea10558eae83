"""Printed: results that are shown as their text, in a shell and in a notebook."""

from __future__ import annotations

from html import escape

from .units import visible


class Printed:
    """Shows ``str(self)`` wherever a result is shown: its first line, the answer, is bold in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        answer, _, rest = escape(visible(str(self))).partition("\n")
        return f"<p><strong>{answer}</strong></p>" + (f"\n<pre>{rest}</pre>" if rest else "")


def answer_lines(answer: str, step: str, rows: list[tuple[str, str]], notes: list[str]) -> str:
    """Return an answer, the step it is for, labelled figures and sentences, each on a line."""
    width = max(len(label) for label, _ in rows)
    return "\n".join([answer, step, *(f"  {label:<{width}}  {text}" for label, text in rows if text), *notes])
