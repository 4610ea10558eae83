"""Bytes, counts and shapes as text, and the sizes that CUDA's allocator rounds to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeGuard
from unicodedata import category

from .records import Group, Structure, TensorSpec

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

UNITS = ("KiB", "MiB", "GiB", "MB", "auto")
"""Units of sizes: powers of 1024 bytes, 1,000,000 bytes, or the largest binary unit that fits each figure."""

BYTE_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}

OLD_MB = "torchsummary's MB"  # 1024 x 1024 bytes, labelled MB.

COUNT_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "B": 10**9}
"""Units of counts; "B" is a billion, as of parameters."""


def mebibytes(nbytes: int) -> str:
    """Format bytes in units of 1024 x 1024 with two decimals, as torchsummary formats its MB."""
    return in_unit(nbytes, "MiB")[0]


def in_unit(
    value: float, unit: str, digits: int | None = None, units: Mapping[str, int] = BYTE_UNITS
) -> tuple[str, str]:
    """Format a number as a figure and its unit, with two decimals by default.

    "auto" is the largest unit that fits, binary for bytes.

    >>> in_unit(19_267_584, "MiB"), in_unit(19_267_584, "MB"), in_unit(19_267_584_000, "auto"), in_unit(0, "auto")
    (('18.38', 'MiB'), ('19.27', 'MB'), ('17.94', 'GiB'), ('0', 'B'))
    >>> in_unit(25_557_032, "auto", 1, COUNT_UNITS)
    ('25.6', 'M')
    """
    if unit == "auto":
        fitting = [name for name in list(units)[:5] if units[name] <= abs(value)]
        unit = max(fitting, key=units.__getitem__, default=next(iter(units)))
    size = MIB if unit == OLD_MB else units[unit]
    text = f"{value}" if size == 1 else f"{value / size:.{2 if digits is None else digits}f}"
    return (text[1:] if text.startswith("-") and not float(text) else text), "MB" if unit == OLD_MB else unit


def common_unit(nbytes: int) -> str:
    """Return the unit in which all figures of a result are given, by its largest figure: KiB, MiB or GiB."""
    return next((unit for unit in ("GiB", "MiB") if nbytes >= BYTE_UNITS[unit]), "KiB")


def in_common_unit(*sizes: int) -> str:
    """Format sizes in the unit of the largest one, which is named once.

    >>> in_common_unit(19 << 30, 22 << 30), in_common_unit(3 << 20)
    ('19.00 of 22.00 GiB', '3.00 MiB')
    """
    unit = common_unit(max(map(abs, sizes)))
    return " of ".join(in_unit(nbytes, unit)[0] for nbytes in sizes) + f" {unit}"


def rate_text(value: float) -> str:
    """Format a rate to three digits, and a large one in full: 46.7, 311,400."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size_text(nbytes: int) -> str:
    """Format bytes in the largest binary unit that fits: 18.38 MiB, 40 B."""
    return " ".join(in_unit(nbytes, "auto"))


INVISIBLE = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as printing but show nothing: joiners, fillers, variation selectors and the Braille blank."""


def one_line(text: str) -> str:
    r"""Return a text on one line, without surprises: characters that do not print, or not in order, are escaped.

    These are control and bidirectional characters, those without width, and surrogates.

    >>> one_line("conv"), one_line("a\nb"), one_line("a\u200bb")
    ('conv', 'a\\nb', 'a\\u200bb')
    """
    if text.isascii() and text.isprintable():
        return text
    printing = ((c.isprintable() or category(c) == "Zs") and not INVISIBLE.match(c) for c in text)
    return "".join(c if prints else ascii(c)[1:-1] for c, prints in zip(text, printing))


def visible(text: str) -> str:
    """Return a text of several lines, each as :func:`one_line` returns it."""
    return "\n".join(map(one_line, text.split("\n")))


def describe(value: object) -> str:
    """Format a value for an error message: shortened, with text in quotes."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..." + (text[-1] if text[-1] in "'\")]}" else "")


def numbered(names: Sequence[str]) -> list[str]:
    """Return names, numbered if several are equal.

    >>> numbered(["ResNet", "VGG", "ResNet"])
    ['ResNet (1)', 'VGG', 'ResNet (2)']
    """
    total = Counter(names)
    return [f"{n} ({names[: i + 1].count(n)})" if total[n] > 1 else n for i, n in enumerate(names)]


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


def brief_text(structure: Structure) -> str:
    """Format nested shapes as :func:`structure_text` does, but where tensors stand beside groups, these by name only.

    >>> from torchsummary_plus.data.records import Group
    >>> logits = TensorSpec((2, 3), "float32", 24)
    >>> brief_text(Group((logits, Group((logits,))), names=("logits", "cache")))
    'logits: [2, 3], + cache'
    """
    if isinstance(structure, Group) and structure.names is not None:
        items = dict(zip(structure.names, structure.items))
        groups = [name for name, item in items.items() if isinstance(item, Group)]
        shapes = [f"{name}: {item.shown}" for name, item in items.items() if isinstance(item, TensorSpec)]
        if groups and shapes:
            return f"{', '.join(shapes)}, + {', '.join(groups)}"
    return structure_text(structure)


def structure_data(structure: Structure) -> object:
    """Return nested shapes as tuples, and dicts where they have names; axes that scale with the batch are -1."""
    if structure is None:
        return None
    if isinstance(structure, TensorSpec):
        return tuple(structure.shown)
    if structure.names is None:
        return tuple(map(structure_data, structure.items))
    return dict(zip(structure.names, map(structure_data, structure.items)))


MIN_BLOCK = 512
"""Every block of CUDA's allocator is a multiple of this, unless ``roundup_power2_divisions`` says otherwise."""

SMALL_REQUEST = MIB  # Largest rounded request in bytes that the allocator's pool of small blocks serves.


def is_integer(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer, Python's or NumPy's; True is none."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def ceil_div(number: int, step: int) -> int:
    """Return a number divided by a step, rounded up."""
    return -(-number // step)


def round_up(number: int, step: int) -> int:
    """Return the smallest multiple of a step that is at least a number."""
    return ceil_div(number, step) * step


def power_of_two_below(number: int) -> int:
    """Return the largest power of 2 up to a number, 1 for 0."""
    return 1 << max(0, number.bit_length() - 1)
