"""Bytes, counts and shapes as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from unicodedata import category

from .records import Structure, TensorSpec

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

UNITS = ("MiB", "MB", "auto")
"""Units of sizes: 1024 x 1024 bytes, 1,000,000 bytes, or the largest binary unit that fits each figure."""


def mebibytes(nbytes: int) -> str:
    """Format bytes in units of 1024 x 1024 with two decimals, as torchsummary formats its MB.

    >>> mebibytes(19_267_584), mebibytes(-8)
    ('18.38', '0.00')
    """
    text = f"{nbytes / MIB:.2f}"
    return "0.00" if text == "-0.00" else text


def in_unit(nbytes: int, units: str) -> tuple[str, str]:
    """Format bytes as a figure and its unit: "MiB" (1024 x 1024 bytes), "MB" (1,000,000), or "auto" (B to TiB).

    >>> in_unit(19_267_584, "MiB"), in_unit(19_267_584, "MB"), in_unit(19_267_584_000, "auto"), in_unit(0, "auto")
    (('18.38', 'MiB'), ('19.27', 'MB'), ('17.94', 'GiB'), ('0', 'B'))
    """
    if units == "MB":
        return f"{nbytes / 1_000_000:.2f}", "MB"
    if units == "MiB":
        return mebibytes(nbytes), "MiB"
    power = min(4, max(0, nbytes.bit_length() - 1) // 10)
    return (f"{nbytes / 1024**power:.2f}", ("B", "KiB", "MiB", "GiB", "TiB")[power]) if power else (f"{nbytes}", "B")


def size_text(nbytes: int) -> str:
    """Format bytes in the largest binary unit that fits.

    >>> size_text(19_267_584), size_text(40)
    ('18.38 MiB', '40 B')
    """
    return " ".join(in_unit(nbytes, "auto"))


def one_line(text: str) -> str:
    r"""Return a name that fits in a table cell: control and other non-printing characters are escaped.

    >>> one_line("conv"), one_line("a\nb")
    ('conv', 'a\\nb')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or category(c) == "Zs" else ascii(c)[1:-1] for c in text)


def describe(value: object) -> str:
    """Format a value for an error message: shortened, with text in quotes.

    >>> describe("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"
    """
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..." + (text[-1] if text[-1] in "'\")]}" else "")


def numbered(names: Sequence[str]) -> list[str]:
    """Return names, numbered if several are equal.

    >>> numbered(["ResNet", "VGG", "ResNet"])
    ['ResNet (1)', 'VGG', 'ResNet (2)']
    """
    total, count = Counter(names), Counter[str]()
    labels = []
    for name in names:
        count[name] += 1
        labels.append(f"{name} ({count[name]})" if total[name] > 1 else name)
    return labels


def structure_text(structure: Structure) -> str:
    """Format nested shapes as a table cell: ``[-1, 64]``, ``[[-1, 64], [2, -1, 8]]``, ``{logits: [-1, 10]}``.

    >>> from torchsummary_plus.data.records import Group
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


def structure_data(structure: Structure) -> object:
    """Return nested shapes as tuples, and dicts where they have names; axes that scale with the batch are -1.

    >>> structure_data(TensorSpec((1, 8), "float32", 32, batch_axes=(0,)))
    (-1, 8)
    """
    if structure is None:
        return None
    if isinstance(structure, TensorSpec):
        return tuple(structure.shown)
    if structure.names is None:
        return tuple(map(structure_data, structure.items))
    return dict(zip(structure.names, map(structure_data, structure.items)))
