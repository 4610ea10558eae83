"""Query cuDNN in a subprocess, where stand-ins for CUDA's libraries let it offer every engine.

The first query starts the subprocess, which imports no torch, uses no GPU and ends with this process.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from threading import Lock
from typing import IO, Any

import torch

from . import shared_object
from .asker import Question, words_of
from .library import CudnnError, cudnn_path

SCRIPT = Path(__file__).with_name("helper.py")


class Helper:
    """The subprocess."""

    def __init__(self, cudnn: Path, cublas_lt: str) -> None:
        self.lock = Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT), str(cudnn), cublas_lt],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, close_fds=True,
        )  # fmt: skip
        atexit.register(self.close)

    def workspaces(self, question: Question, **how: Any) -> list[int]:
        """Return what :func:`.asker.workspaces` yields there."""
        with self.lock:
            line = self._exchange(json.dumps({"question": words_of(question), **how}))
        answered: dict[str, Any] = json.loads(line) if line else {"error": "the cuDNN subprocess ended"}
        if "error" in answered:
            raise CudnnError(answered["error"])
        found: list[int] = answered["workspaces"]
        return found

    def _exchange(self, line: str) -> str:
        try:
            self._input.write(line + "\n")
            self._input.flush()
            assert self.process.stdout is not None
            return self.process.stdout.readline()
        except OSError:
            return ""

    @property
    def _input(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def close(self) -> None:
        """End the subprocess."""
        self.process.kill()
        self.process.wait()


def workspaces(
    question: Question, device_text: str, mode: int, refused: frozenset[int], every: bool = False
) -> Iterator[int]:
    """Do as :func:`.asker.workspaces`, with every engine. Raises :class:`CudnnError` if there is no answer."""
    helper = _helper(os.getpid())
    if helper is None:
        raise CudnnError("the cuDNN subprocess cannot be started")
    return iter(helper.workspaces(question, device=device_text, mode=mode, refused=sorted(refused), every=every))


def is_to_be_had() -> bool:
    """Return whether cuDNN can be queried in a subprocess."""
    return _helper(os.getpid()) is not None


@cache
def _helper(process: int) -> Helper | None:
    """Return the helper of a process; a fork gets its own."""
    cudnn, cublas_lt = cudnn_path(), _cublas_lt()
    if cudnn is None or cublas_lt is None or not sys.executable or not shared_object.is_possible():
        return None
    try:
        return Helper(cudnn, cublas_lt)
    except OSError:
        return None


def _cublas_lt() -> str | None:
    """Return the file name of the cublasLt that torch ships."""
    site = Path(torch.__file__).parents[1]
    found = sorted(site.glob("nvidia/*/lib/libcublasLt.so.*")) + sorted(site.glob("torch/lib/libcublasLt.so.*"))
    return found[0].name if found else None
