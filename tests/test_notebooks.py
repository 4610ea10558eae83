"""Every notebook runs, and what it prints is what is committed with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def printed(notebook: Any) -> list[str]:
    """The text of each code cell's outputs."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_committed(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    committed = printed(notebook)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert any(committed) and printed(notebook) == committed
