"""Every notebook runs, and what it shows is what is committed with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def shown(notebook: Any) -> list[list[tuple[str, str]]]:
    """What each code cell's outputs are: printed text, and each form of what is displayed, without its style."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [[form for output in cell.outputs for form in _forms(output)] for cell in cells]


def _forms(output: Any) -> list[tuple[str, str]]:
    if output.output_type == "stream":
        return [("text", output.text)]
    return [
        (kind, re.sub(r"<(style|script)>.*?</\1>", "", form, flags=re.S)) for kind, form in sorted(output.data.items())
    ]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_committed(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    committed = shown(notebook)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert any(committed) and shown(notebook) == committed
