"""Run the Python and the console blocks of the README and the pages, and write what they print.

Run ``python -m docs.outputs [PAGE ...]``.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from torchsummary_plus.api.cli import main as shell
from torchsummary_plus.ops.scratch.cuda.cudnn import backend

ROOT = Path(__file__).parents[1]
SHOWN = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n\$ torchsummary-plus (.*?)\n.*?^```\n", re.MULTILINE | re.DOTALL)


def with_outputs(page: str) -> str:
    """Run a page's blocks in order, and return the page with what each prints: below Python, inside of a console."""
    names: dict[str, Any] = {}

    def block(match: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match[1], "page", "exec", dont_inherit=True), names)
        shown = f"```text\n{printed.getvalue()}```\n" if printed.getvalue() else ""
        return f"```python\n{match[1]}```\n{shown}"

    return CONSOLE.sub(_console, SHOWN.sub(block, page))


def _console(match: re.Match[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        shell(shlex.split(match[1]))
    return f"```console\n$ torchsummary-plus {match[1]}\n{printed.getvalue()}```\n"


def main() -> None:
    """Rewrite the given pages (all by default) with the output of a CPU build of torch."""
    pages = [Path(name) for name in sys.argv[1:]] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    with mock.patch.object(backend, "cudnn_path", lambda: None):
        for page in pages:
            page.write_text(with_outputs(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
