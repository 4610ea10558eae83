"""torch's memory profiler, without kineto's messages on standard error when it starts and ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.autograd.profiler import profile

from ..data.errors import UnsupportedError
from ..live import compat

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


def alone() -> AbstractContextManager[None]:
    """Refuse other profilers inside this context: torch would end the active profile silently for another's start.

    There, they raise :class:`UnsupportedError`.
    """
    return compat.replaced(dict.fromkeys(compat.profiler_starts, _refuse))


def _refuse(*_: Any, **__: Any) -> None:
    raise UnsupportedError(
        "the step starts one of torch's profilers, but is itself measured by one, and torch runs only one at a time; "
        "remove the profiler from the step (estimate_memory needs none, unless it has to measure the step)"
    )


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
