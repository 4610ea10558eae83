"""Show a result exactly once: as HTML in a notebook, as text elsewhere, as wide as a terminal."""

from __future__ import annotations

import sys

from ..formats.printing import printable
from ..results.echo import note_shown, takes_html
from ..results.views import Views


def show(result: Views) -> None:
    """Show a result now, and keep an interactive shell from echoing it again.

    Redirected output in a notebook is text.
    """
    if takes_html() and _is_the_kernels(sys.stdout):
        from IPython.display import display

        display(result)
        note_shown(result)
    else:
        print(printable(result.to_terminal(sys.stdout), sys.stdout))
        if not takes_html():
            note_shown(result)


def _is_the_kernels(stream: object) -> bool:
    """Return whether a stream is the kernel's own output stream."""
    streams = sys.modules.get("ipykernel.iostream")
    return streams is not None and isinstance(stream, streams.OutStream)
