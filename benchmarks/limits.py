"""A time limit for one model of a benchmark."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Timeout(BaseException):
    """The time limit was exceeded. A BaseException, so that no library's ``except Exception`` catches it."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise :class:`Timeout` in a block that takes longer; only in the main thread on Unix."""

    def over(*_: Any) -> None:
        raise Timeout(f"more than {seconds} s")

    outer = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, outer)
