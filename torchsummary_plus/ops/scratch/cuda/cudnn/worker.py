"""Answer queries for cuDNN in a subprocess without torch, one JSON line for each (:mod:`.worker_client` starts it).

Usage: ``python worker.py CUDNN_PATH CUDA_VERSION``.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "torchsummary_plus.ops.scratch.cuda.cudnn"


def make_packages() -> None:
    """Register packages that only know their folders: the code of the real ones imports torch."""
    folder = Path(__file__).parent
    names = PACKAGE.split(".")
    for depth in range(len(names), 0, -1):
        _add_package(".".join(names[:depth]), folder)
        folder = folder.parent


def _add_package(name: str, folder: Path) -> None:
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


def main(cudnn: str, cuda: str) -> None:
    """Answer each JSON line on standard input with one on standard output."""
    make_packages()
    import_module(f"{PACKAGE}.stand_ins").load_stand_ins(cuda)
    backend, heuristics = (import_module(f"{PACKAGE}.{name}") for name in ("backend", "heuristics"))
    backend.override.append(Path(cudnn))
    for line in sys.stdin:
        print(json.dumps(answer(backend, heuristics, json.loads(line))), flush=True)


def answer(backend: Any, heuristics: Any, query: dict[str, Any]) -> dict[str, Any]:
    """Return the workspaces that cuDNN reports for a query, or its error."""
    try:
        question = heuristics.question_of(query["question"])
        sizes = heuristics.workspaces(
            question, query["device"], query["mode"], frozenset(query["refused"]), query["every"]
        )
        return {"workspaces": list(sizes)}
    except backend.CudnnError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    main(*sys.argv[1:])
