"""torch's profiler without kineto's notes on standard error at its start and end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import profile

NOTE = b"USDT:"
"""Prefix of kineto's lines for tracing tools (libkineto/src/SyncActivityProfilerHandler.cpp)."""


class QuietProfile(profile):
    """torch's profiler; anything else written to standard error still gets there."""

    def start(self) -> None:
        """Start the profiler without kineto's notes."""
        with without_notes():
            super().start()

    def stop(self) -> None:
        """Stop the profiler without kineto's notes."""
        with without_notes():
            super().stop()


@contextmanager
def without_notes() -> Iterator[None]:
    """Hold back the process's standard error, and write it on exit without kineto's notes."""
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
