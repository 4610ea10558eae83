"""Names and figures escaped for Mermaid."""

from __future__ import annotations

import re

from ..data.units import one_line

SPECIAL = re.compile(r"[^A-Za-z0-9 .,:\[\]/+_-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+]")
"""Characters special to Mermaid, HTML or Markdown (which Mermaid interprets in labels)."""


def safe(text: str) -> str:
    """Escape a name for any label: special characters become character codes.

    >>> safe("conv_1 [2, 3]"), safe('end"<b>'), safe("_fc_")
    ('conv_1 [2, 3]', 'end#34;#60;b#62;', '#95;fc#95;')
    """
    return SPECIAL.sub(lambda match: f"#{ord(match[0])};", one_line(text))


def counted(count: int) -> str:
    """Return a parameter count with its unit.

    >>> counted(1), counted(23_454_912)
    ('1 param', '23,454,912 params')
    """
    return f"{count:,} param{'' if count == 1 else 's'}"
