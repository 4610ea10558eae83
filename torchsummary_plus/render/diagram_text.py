"""Names and figures as a Mermaid diagram can hold them."""

from __future__ import annotations

import re

from ..units import one_line

SPECIAL = re.compile(r"[^A-Za-z0-9 .,:\[\]/+_-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+]")
"""What means something to Mermaid, to HTML, or to Markdown, which Mermaid reads in labels."""


def safe(text: str) -> str:
    """A name as it can stand in any label: what could mean more than itself is written by its number.

    >>> safe("conv_1 [2, 3]"), safe('end"<b>'), safe("_fc_")
    ('conv_1 [2, 3]', 'end#34;#60;b#62;', '#95;fc#95;')
    """
    return SPECIAL.sub(lambda found: f"#{ord(found[0])};", one_line(text))


def counted(count: int) -> str:
    """Parameters in words.

    >>> counted(1), counted(23_454_912)
    ('1 param', '23,454,912 params')
    """
    return f"{count:,} param{'' if count == 1 else 's'}"
