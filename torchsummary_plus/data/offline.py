"""Run other packages' code without letting it connect anywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from .errors import InputError
from .units import describe

CONNECTING = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
"""Python's audit events for connections."""

_attempts: ContextVar[list[str] | None] = ContextVar("attempts", default=None)


@contextmanager
def offline() -> Iterator[list[str]]:
    """Refuse connections to the code inside the block, in this thread; yield what it attempted.

    Python's audit events see every connection, whichever library opens it. They do not see one that is open already:
    the Hub's client, which keeps its own open, is told to stay offline as well.
    """
    _watch()
    hub = sys.modules.get("huggingface_hub.constants")
    was_offline = getattr(hub, "HF_HUB_OFFLINE", True)
    attempts: list[str] = []
    token = _attempts.set(attempts)
    try:
        if not was_offline:
            hub.HF_HUB_OFFLINE = True  # type: ignore[union-attr]
        yield attempts
    finally:
        if not was_offline:
            hub.HF_HUB_OFFLINE = False  # type: ignore[union-attr]
        _attempts.reset(token)


@cache
def _watch() -> None:
    """Install the audit hook, once: Python has no way to remove one. Outside of blocks it does nothing."""
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event in CONNECTING and (attempts := _attempts.get()) is not None:
        attempts.append(f"{event} {describe(args[1:])}")
        raise InputError(f"{attempts[-1]}: nothing is downloaded")
