"""Run notebooks again, each in a kernel of its own, and write down what they show.

python notebooks/build.py [NAME ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
SECONDS = 300
"""How long a cell may take."""


def execute(path: Path) -> Any:
    """A notebook with the outputs of a new kernel; without progress bars and stderr, which tell of the machine."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=SECONDS, resources=resources, record_timing=False, coalesce_streams=True)
    client.execute(env={**os.environ, "TQDM_DISABLE": "1"})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(names: list[str]) -> None:
    """Rewrite the notebooks of these names, or all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            notebook = execute(path)
            notebook.metadata.get("language_info", {}).pop("version", None)  # Any will do.
            nbformat.write(notebook, path)
            print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
