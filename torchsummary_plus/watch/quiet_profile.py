"""torch's memory profiler, without kineto's messages on standard error when it starts and ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd.profiler import profile

NOTE = b"USDT:"
"""Prefix of kineto's lines for tracing tools (libkineto/src/SyncActivityProfilerHandler.cpp)."""


class QuietProfile:
    """The memory events of the CPU, and of a CUDA device if asked; other lines still reach standard error.

    ``torch.profiler.profile``, which wraps torch's class, imports its compiler stack (seconds).
    """

    def __init__(self, device: str = "cpu", with_arguments: bool = False) -> None:
        cuda = "cuda" if device == "cuda" else None
        self._profile: Any = profile(
            use_device=cuda, profile_memory=True, use_kineto=True, record_shapes=with_arguments
        )

    def start(self) -> None:
        """Begin to record."""
        with without_notes():
            self._profile.__enter__()

    def stop(self) -> None:
        """End, so that the events can be read."""
        with without_notes():
            self._profile.__exit__(None, None, None)

    def __enter__(self) -> QuietProfile:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def roots(self) -> list[Any]:
        """Return the outermost events, each with its children."""
        results = self._profile.kineto_results
        return [] if results is None else list(results.experimental_event_tree())


@contextmanager
def without_notes() -> Iterator[None]:
    """Hold back the process's standard error, and write it on exit without kineto's messages."""
    try:
        stderr = os.dup(2)
    except OSError:  # Standard error is closed, as in a service.
        yield
        return
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held_back.seek(0)
            for line in held_back:
                if not line.startswith(NOTE):
                    os.write(2, line)
