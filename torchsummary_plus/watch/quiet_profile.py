"""torch's profiler without the lines that kineto writes to standard error at its start and end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import profile

NOTE = b"USDT:"
"""How kineto's lines for tracing tools begin (libkineto/src/SyncActivityProfilerHandler.cpp)."""


class QuietProfile(profile):
    """torch's profiler; everything else that is written to standard error still gets there."""

    def start(self) -> None:
        with without_notes():
            super().start()

    def stop(self) -> None:
        with without_notes():
            super().stop()


@contextmanager
def without_notes() -> Iterator[None]:
    """Hold back the process's standard error, and write it at the end without kineto's notes."""
    try:
        stderr = os.dup(2)
    except OSError:  # There is none: a service, say.
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
