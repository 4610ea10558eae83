"""How answers are printed: what a figure does not know and what it assumes, in two plain sentences at most."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from .memory_records import AS_COMPILED, COMPILED, COMPILED_ON_CUDA, PADDED, SECOND_ORDER, TUNED
from .units import one_line, visible

MOST = 2  # How many reasons, operators or assumptions a sentence names.

OF_RANK = "one rank of many on CUDA"
FREES_CACHE = "the step fits on the GPU only because the allocator frees its cache"  # How two assumptions begin.

WORDS = (
    (r"cuDNN workspaces estimated from .*CPU build.*",
     "cuDNN's workspace comes from a table here; a CUDA build of torch asks cuDNN", ""),
    (r"cuDNN workspaces estimated from .*", "cuDNN's workspace comes from a table", ""),
    (r"cuDNN workspaces without the GPU.*", "cuDNN's choice of kernels needs the GPU itself", ""),
    (re.escape(COMPILED), "torch's compiler may keep more or less than the uncompiled code", ""),
    (re.escape(PADDED), "torch.compile decides by timing whether to pad matrix products", ""),
    (re.escape(COMPILED_ON_CUDA), "", "compiled steps have been compared with simulated GPUs only"),
    (re.escape(OF_RANK) + ".*", "one rank of many has been compared with published figures only", ""),
    (r"(\S+): (scratch memory known to within \S+)", r"\1: \2", ""),
    (r"targets of .*, of ([\d,]+) classes.*", "", r"\1 classes"),
    (r"targets of .*|cuDNN [\d.]+ queried .*", "", ""),
    ("|".join([re.escape(TUNED), re.escape(AS_COMPILED), re.escape(FREES_CACHE) + ".*"]), "", ""),
)  # fmt: skip
"""Assumptions, the reasons why they widen the range of a peak, and how they are listed; "" where they aren't."""


def caveats(unknown: Sequence[tuple[str, int]], assumptions: Sequence[str]) -> list[str]:
    """Return a sentence on what makes the range of a peak wide, and one on what is assumed.

    >>> caveats([("mylib::rotate", 2)], ["targets of nll: int64 [8], of 10 classes (axis 1)"])
    ['Not exact: the scratch memory of mylib::rotate is not known.', 'Assumed: 10 classes.']
    """
    why = reasons(unknown, assumptions)
    return [*([f"Not exact: {why}."] if why else []), *assumed(assumptions)]


def reasons(unknown: Sequence[tuple[str, int]], assumptions: Sequence[str]) -> str:
    """Return why a peak is not exact; "" if nothing is known to make it so."""
    why = [reason for line in assumptions if (reason := _in_words(line)[0])]
    by_cudnn = any("cuDNN" in words for words in why)
    names = [name for name, _ in unknown if name != SECOND_ORDER and not (by_cudnn and "convolution" in name)]
    if names:
        why.append(f"the scratch memory of {listed(names)} is not known")
    if SECOND_ORDER in dict(unknown):
        why.append("the order of gradients of gradients on CUDA is not known")
    return "; ".join(list(dict.fromkeys(why))[:MOST])


def assumed(assumptions: Sequence[str], where: str = "assumptions") -> list[str]:
    """Return the sentence on the first assumptions that a reader may want to change, if any; ``where`` has all."""
    shown = [one_line(words) for words in dict.fromkeys(_in_words(line)[1] for line in assumptions) if words]
    if not shown:
        return []
    more = f"; and {len(shown) - MOST:,} more, see {where}" if len(shown) > MOST else ""
    return [f"Assumed: {'; '.join(shown[:MOST])}{more}."]


def _in_words(assumption: str) -> tuple[str, str]:
    """Return an assumption as a reason, and as it is listed, by the first pattern that it matches."""
    matches = ((re.fullmatch(pattern, assumption), words) for pattern, *words in WORDS)
    said = (tuple(map(match.expand, words)) for match, words in matches if match is not None)
    reason, short = next(said, ("", assumption))
    return reason, short


def listed(names: Sequence[str]) -> str:
    """Return the first names as a list in words: "a", "a and b", "a, b and 2 more"."""
    shown = [*map(one_line, names[:MOST]), *([f"{len(names) - MOST:,} more"] if len(names) > MOST else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


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
