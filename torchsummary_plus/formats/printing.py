"""Text limited to the characters that a stream can encode."""

from __future__ import annotations

import sys
from typing import TextIO

ASCII = str.maketrans("├└│─", "|`|-")
"""Stand-ins for the tree's branches."""


def printable(text: str, stream: TextIO | None = None) -> str:
    """Return text that a stream, by default standard output, can encode.

    Tree branches become ASCII, and other characters that it lacks "?".

    >>> from io import BytesIO, TextIOWrapper
    >>> [printable("└─fc (Linear)", TextIOWrapper(BytesIO(), encoding)) for encoding in ("utf-8", "ascii")]
    ['└─fc (Linear)', '`-fc (Linear)']
    """
    encoding: str = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text
