"""Bytes, counts and shapes as text."""

from __future__ import annotations

from .records import Structure, TensorSpec

MIB = 1024 * 1024


def mebibytes(nbytes: int) -> str:
    """Bytes in units of 1024 x 1024 with two decimals, as torchsummary prints what it calls MB.

    >>> mebibytes(19_267_584)
    '18.38'
    """
    return f"{nbytes / MIB:.2f}"


def describe(value: object) -> str:
    """A value as an error message shows it: short, quoted where it is text.

    >>> describe("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"
    """
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..." + (text[-1] if text[-1] in "'\")]}" else "")


def structure_text(structure: Structure) -> str:
    """A structure as a table cell, nested as it was: ``[-1, 64]``, ``[[-1, 64], [2, -1, 8]]``, ``{logits: [-1, 10]}``.

    >>> from torchsummary_plus.records import Group
    >>> a = TensorSpec((2, 3), "float32", 24)
    >>> structure_text(Group((a, Group((a,)))))
    '[[2, 3], [[2, 3]]]'
    >>> structure_text(None)
    '--'
    """
    if structure is None:
        return "--"
    if isinstance(structure, TensorSpec):
        return str(structure.shown)
    if structure.names is None:
        return "[" + ", ".join(map(structure_text, structure.items)) + "]"
    return "{" + ", ".join(f"{n}: {structure_text(i)}" for n, i in zip(structure.names, structure.items)) + "}"
