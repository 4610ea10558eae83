"""Processes that use a GPU: the machine's own, or one that the no-op runtime (benchmarks/nocuda) simulates.

A process that uses CUDA cannot fork, so each measurement runs in a child of a process that does not.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.nocuda.runtime import is_active, play

REAL = "real"
"""Instead of a card's name: the machine's own GPU, with CUDA's own libraries."""
CHILD_SECONDS = 240
"""Time limit of a child process: cuDNN compiles some of the plans that it tries."""


@cache
def has_gpu() -> bool:
    """Whether the machine has a GPU, according to NVML, which leaves CUDA unused in this process."""
    if is_active():
        return False
    with patch.dict(os.environ, PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        return torch.cuda.is_available()


def run_on(cards: Sequence[str], module: str) -> list[str]:
    """Return the cards, once this process runs on the no-op runtime; one "" stands for the machine's own GPU.

    Starts the benchmark ``module`` anew on the no-op runtime if necessary. Raises SystemExit if there is no GPU.
    """
    if list(cards) == [REAL]:
        if not has_gpu():
            raise SystemExit("--card real: this machine has no GPU that torch can use")
        return [""]
    if not is_active():
        judge = ["-m", "benchmarks.nocuda", "--card", cards[0], "-m", module]
        os.execv(sys.executable, [sys.executable, *judge, *sys.argv[1:]])
    return list(cards)


def warm_up() -> None:
    """Load once what every child process would load: torch's compiler stack, for optimizers, and cuDNN's libraries."""
    import_module("torch._dynamo")
    if is_active():
        for path in sorted(Path(os.environ["NOCUDA_CUDNN"]).parent.glob("libcudnn_*.so*")):
            ctypes.CDLL(str(path))


def in_child(run: Callable[[], dict[str, Any]], card: str = "") -> dict[str, Any]:
    """Return the result of a call, on a GPU from a child process of its own, so that no cache outlives it.

    In particular, cuDNN's plans are kept as long as the process, whatever ``cudnn.benchmark`` is set to later.
    """
    if not is_active() and not has_gpu():
        return run()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        play(card)
        signal.alarm(CHILD_SECONDS)
        with os.fdopen(writer, "w") as out:
            json.dump(run(), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"the process ended with status {status}"}  # type: ignore[no-any-return]


def without_gpu() -> Any:
    """Return a context in which libraries find no GPU on import, because a process that uses CUDA cannot fork."""
    return patch.multiple(torch.cuda, is_available=lambda: False, device_count=lambda: 0)
