"""Signals during a pass: what their handlers raise is held until a point at which nothing is half done.

A Python signal handler may run between any two bytecodes. Raised there, an exception of its own could cut short what
puts a mode of torch on or takes it off, or end up in one of torch's C++ callbacks, which then abort the process.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from time import monotonic
from types import FrameType
from typing import Any, ClassVar

_OURS = __name__.partition(".")[0]

_SIGNALS = [int(number) for number in signal.valid_signals()]
_handler_of: Callable[[int], Any] = import_module("_signal").getsignal
"""The function in C: Python's around it, which names the handlers, takes several times as long."""

PATIENCE = 0.1
"""Seconds after which code that reaches no safe point is interrupted where it is, unless it is this package's."""


class HeldError(BaseException):
    """Carries a handler's exception past whatever would catch that exception on the way."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(original)
        self.original = original


class _Held:
    """The process's own handlers while they are set aside, and what one of them has raised.

    ``error`` waits for a safe point; ``raised`` was raised at one, where a model's code may catch it.
    """

    owner: signals_held | None = None
    handlers: ClassVar[dict[int, Callable[[int, FrameType | None], Any]]] = {}
    error: BaseException | None = None
    raised: BaseException | None = None
    number = 0
    since = 0.0
    reminder: threading.Timer | None = None


def _arrived(number: int, frame: FrameType | None) -> None:
    """Run a signal's own handler at once, and keep what it raises for the next safe point."""
    if _Held.error is None or number != _Held.number:
        try:
            _Held.handlers[number](number, frame)
            return
        except BaseException as error:
            if _Held.error is not None:
                return  # One is enough to end the pass.
            error.__traceback__ = error.__context__ = None
            _Held.error, _Held.number, _Held.since = error, number, monotonic()
    elif monotonic() - _Held.since > PATIENCE and not _is_ours(frame):
        safe_point()
    if _Held.error is not None:
        _Held.reminder = threading.Timer(PATIENCE, _send_again, (number, _Held.error))
        _Held.reminder.daemon = True
        _Held.reminder.start()


def _is_ours(frame: FrameType | None) -> bool:
    return frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] in (_OURS, "contextlib")


def _send_again(number: int, error: BaseException) -> None:
    """Interrupt the main thread again if it has reached no safe point, as in a forward that sleeps."""
    if _Held.error is error:
        kill: Callable[..., None] | None = getattr(signal, "pthread_kill", None)  # Not on Windows.
        interrupt: Callable[[int], None] = _thread.interrupt_main  # type: ignore[assignment]
        interrupt(number) if kill is None else kill(threading.main_thread().ident, number)


def safe_point() -> None:
    """Raise what a signal's handler has raised; call it where a pass may end, such as before an operator."""
    if _Held.error is not None and threading.current_thread() is threading.main_thread():
        error = _Held.raised = _Held.error
        _Held.error = None
        raise HeldError(error)


class signals_held:
    """Inside the block, what signal handlers raise is held until the next :func:`safe_point`, or the block's end.

    Handlers written in Python are set aside in the main thread, where alone they run; what they do besides raising
    is done at once. Anything else might be lost: Python ignores what is raised in a callback of a weak reference.
    """

    def __enter__(self) -> None:
        try:
            if _Held.owner is None and threading.current_thread() is threading.main_thread():
                _Held.owner = self
                for number in _SIGNALS:
                    handler = _handler_of(number)
                    if callable(handler):
                        _Held.handlers[number] = handler
                        signal.signal(number, _arrived)
        except BaseException:
            self._leave()
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if _Held.owner is not self:
            return
        original = self._leave()
        if original is not None:
            if error is not None:
                error.__traceback__ = error.__context__ = None  # Their frames would keep the pass alive.
            raise original from None

    def _leave(self) -> BaseException | None:
        """Set the user's handlers again, and return what is still to be raised.

        If a handler that is set raises, the others are set before that goes on.
        """
        if _Held.owner is not self:
            return None
        try:
            while _Held.handlers:
                number, handler = next(iter(_Held.handlers.items()))
                if signal.getsignal(number) is _arrived:  # Otherwise the user's code has set another.
                    signal.signal(number, handler)
                _Held.handlers.pop(number, None)
            pending, _Held.error = _Held.error or _Held.raised, None  # Only now can no handler add another.
            if _Held.reminder is not None:
                _Held.reminder.cancel()
                _Held.reminder.join()
            _Held.raised = _Held.reminder = _Held.owner = None
            return pending
        except BaseException:
            self._leave()
            raise
