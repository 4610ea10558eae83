"""Answer queries for cuDNN in a subprocess without torch, one JSON line for each (:mod:`.queries` starts it).

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
    names, folder = PACKAGE.split("."), Path(__file__).parent
    for depth in range(len(names), 0, -1):
        package = ModuleType(".".join(names[:depth]))
        package.__path__ = [str(folder)]
        sys.modules[package.__name__] = package
        folder = folder.parent


def main(cudnn: str, cuda: str) -> None:
    """Answer each JSON line on standard input with one on standard output: the workspaces, or cuDNN's error."""
    make_packages()
    stand_ins, backend = (import_module(f"{PACKAGE}.{name}") for name in ("stand_ins", "backend"))
    stand_ins.load_stand_ins(cuda)
    backend.override.append(Path(cudnn))
    for line in sys.stdin:
        (kind, dtype, last, *sizes), device, mode, refused, every = json.loads(line)
        question = backend.Question(backend.Kind(kind), dtype, last, *map(tuple, sizes))
        answer: dict[str, Any]
        try:
            answer = {"workspaces": list(backend.workspaces(question, device, mode, frozenset(refused), every))}
        except backend.CudnnError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
