"""Run the notebooks, each in its own kernel, and store their outputs: ``python notebooks/build.py [NAME ...]``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
SECONDS = 300
"""Time limit of a cell."""


def run(notebook: Any, folder: Path, python: Sequence[str] = (sys.executable,), **options: Any) -> None:
    """Run a notebook in a folder with a new kernel, started by the command ``python``, and store its outputs."""
    with TemporaryDirectory() as specs:
        spec = Path(specs) / "own" / "kernel.json"
        spec.parent.mkdir()
        argv = [*python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.write_text(json.dumps({"argv": argv, "display_name": "own", "language": "python"}), encoding="utf-8")
        manager = AsyncKernelManager(kernel_name="own", kernel_spec_manager=KernelSpecManager(kernel_dirs=[specs]))
        resources = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, km=manager, timeout=SECONDS, resources=resources, **options)
        client.execute()


def execute(path: Path, python: Sequence[str] = (sys.executable,)) -> Any:
    """Return a notebook with the outputs of a new kernel, without lines of progress and stderr."""
    notebook = nbformat.read(path, as_version=4)
    run(notebook, path.parent, python, record_timing=False, coalesce_streams=True)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shown = [output for output in cell.outputs if output.get("name") != "stderr"]
            cell.outputs = [output for output in shown if output.get("data") != {}]  # A line of progress that is gone.
    return notebook


def main(names: list[str]) -> None:
    """Rewrite the notebooks with these names, or all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            notebook = execute(path)
            notebook.metadata.get("language_info", {}).pop("version", None)  # Any version works.
            nbformat.write(notebook, path)
            print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
