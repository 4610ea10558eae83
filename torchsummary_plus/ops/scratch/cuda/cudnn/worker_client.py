"""Query cuDNN in a subprocess, where stand-ins for CUDA's libraries let it offer the engines that need a driver.

The first query for a GPU starts its subprocess, which imports no torch, uses no GPU and ends with this process. Each
GPU has its own: some of cuDNN's heuristics keep the properties of the first device that a process asks about.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import IO, Any

import torch

from .backend import CudnnError, cudnn_library, cudnn_path
from .heuristics import Question, words_of
from .stand_ins import is_possible

SCRIPT = Path(__file__).with_name("worker.py")
UNREAD = 64
"""Most queries sent ahead: they and their answers fit in the pipes, so that neither side waits for the other."""


class Worker:
    """The subprocess for a GPU."""

    def __init__(self, cudnn: Path, cuda: str) -> None:
        self.lock = Lock()
        self.sent: deque[str] = deque()
        """The queries whose answers are still to be read, in order."""
        self.answers: dict[str, str] = {}
        """By query sent ahead: its answer, until it is requested."""
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT), str(cudnn), cuda],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, close_fds=True,
        )  # fmt: skip
        atexit.register(self.close)

    def workspaces(self, question: Question, **how: Any) -> list[int]:
        """Return what :func:`.heuristics.workspaces` yields there."""
        query = _query(question, how)
        with self.lock:
            line = self._answer(query)
        answered: dict[str, Any] = json.loads(line) if line else {"error": "the cuDNN subprocess exited"}
        if "error" in answered:
            raise CudnnError(answered["error"])
        sizes: list[int] = answered["workspaces"]
        return sizes

    def expect(self, question: Question, **how: Any) -> None:
        """Send a query ahead, to be answered while this process does something else."""
        query = _query(question, how)
        with self.lock:
            if len(self.sent) < UNREAD and query not in self.answers and query not in self.sent:
                self._send(query)

    def _answer(self, query: str) -> str:
        if query not in self.answers and query not in self.sent:
            self._send(query)
        while query not in self.answers:
            self._read()
        return self.answers.pop(query)

    def _send(self, query: str) -> None:
        self.sent.append(query)
        with suppress(OSError):  # An exited subprocess is noticed when reading.
            self._input.write(query + "\n")
            self._input.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.answers[self.sent.popleft()] = self.process.stdout.readline()

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
    """Do as :func:`.heuristics.workspaces`, with all engines. Raises :class:`CudnnError` if there is no answer."""
    worker = _worker(os.getpid(), device_text)
    if worker is None:
        raise CudnnError("the cuDNN subprocess could not be started")
    return iter(worker.workspaces(question, device=device_text, mode=mode, refused=sorted(refused), every=every))


def expect(question: Question, device_text: str, mode: int, refused: frozenset[int], every: bool = False) -> None:
    """Have the subprocess answer :func:`workspaces` ahead, if it can be started."""
    worker = _worker(os.getpid(), device_text)
    if worker is not None:
        worker.expect(question, device=device_text, mode=mode, refused=sorted(refused), every=every)


def is_available(device_text: str) -> bool:
    """Return whether cuDNN can be queried about a GPU in a subprocess."""
    return _worker(os.getpid(), device_text) is not None


def _query(question: Question, how: dict[str, Any]) -> str:
    return json.dumps({"question": words_of(question), **how})


@cache
def _worker(process: int, device_text: str) -> Worker | None:
    """Return a process's worker for a GPU, by the text of its properties; a fork gets its own."""
    cudnn = cudnn_path()
    if cudnn is None or not sys.executable or not is_possible():
        return None
    try:
        return Worker(cudnn, _cuda_version())
    except (OSError, CudnnError):
        return None


def _cuda_version() -> str:
    """Return the version of CUDA that cuDNN runs with: torch's, unless this cuDNN was built for another major one."""
    number = cudnn_library().cudnnGetCudartVersion()
    major, minor = number // 1000, number % 1000 // 10
    known = torch.version.cuda or ""
    return known if known.startswith(f"{major}.") else f"{major}.{minor}"
