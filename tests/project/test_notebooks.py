"""Every notebook runs in a kernel of its own, and says what is committed with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from notebooks.build import FOLDER, execute

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 300_000


def shown(notebook: Any) -> list[list[tuple[str, str]]]:
    """What each code cell's outputs are: what is printed, and of what is displayed the text and the names of its forms.

    The other forms have tests of their own, and pictures differ with the fonts that are there.
    """
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [[_form(output) for output in cell.outputs] for cell in cells]


def _form(output: Any) -> tuple[str, str]:
    if output.output_type == "stream":
        return output.name, output.text.replace("addmm: mat1", "mat1")  # The prefix is there from torch 2.15 on.
    return " ".join(sorted(output.data)), output.data.get("text/plain", "")


def links(notebook: Any) -> list[str]:
    """Where the prose leads to in this repository."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.findall(r"\]\(([^)#:]+)\)", prose)


def test_there_are_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02}" for number in range(1, len(NOTEBOOKS) + 1)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_is_committed(path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    nbformat.validate(committed)
    assert path.stat().st_size < MOST_BYTES
    assert all((FOLDER / link).exists() for link in links(committed))
    assert any(shown(committed)) and shown(execute(path)) == shown(committed)
