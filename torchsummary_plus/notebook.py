"""How a call shows its result: rich in a notebook, as text everywhere else, and once in both."""

from __future__ import annotations

import sys

from .echo import note_shown, takes_html
from .views import Views


def show(result: Views) -> None:
    """Show a result now. A shell that shows the value of the statement, too, is told that it is shown.

    Output that the user redirects in a notebook is text.
    """
    if takes_html() and _is_the_kernels(sys.stdout):
        from IPython.display import display

        display(result)
        note_shown(result)
    else:
        print(result)
        if not takes_html():
            note_shown(result)


def _is_the_kernels(stream: object) -> bool:
    """Whether a stream is the one by which a kernel sends what is printed."""
    streams = sys.modules.get("ipykernel.iostream")
    return streams is not None and isinstance(stream, streams.OutStream)
