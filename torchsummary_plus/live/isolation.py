"""What a pass leaves as it was in its process: other threads, signals, random numbers, switches, garbage collection.

One pass runs at a time. Threads beside it, such as one that trains the model, see torch's own functions. It draws
random numbers from a state of its own. What signal handlers raise is held until a point at which nothing is half done:
a Python handler may run between any two bytecodes, where its exception could cut short what puts a mode of torch on or
takes it off, or end up in one of torch's C++ callbacks, which then abort the process.
"""

from __future__ import annotations

import _thread
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from importlib import import_module
from operator import attrgetter
from time import monotonic
from types import FrameType, FunctionType
from typing import Any, ClassVar

import torch
from torch._ops import OpOverload

from . import compat

_LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):  # A thread that held it exists in the parent alone.
    os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=threading.RLock()))


@contextmanager
def one_pass() -> Iterator[None]:
    """Serialise passes, which replace functions of torch, hold what signals raise until a safe point, and suspend a
    caller's ``FakeTensorMode``. The other threads that exist when it begins run beside the pass.
    """
    global _beside
    with _LOCK, signals_held(), compat.outside_fake_mode():
        others = frozenset(map(attrgetter("ident"), threading.enumerate())) - {threading.get_ident()}
        outer, _beside = _beside, others
        try:
            yield
        finally:
            _beside = outer


@contextmanager
def global_state_kept(draws: bool = False) -> Iterator[None]:
    """Set back the random generators and switches of torch, Python and NumPy that a pass has changed.

    The pass draws from a state that begins as the current one: operators through :func:`drawn`, and torch's functions
    that read or set the state. A pass inside goes on with its own copy. The CPU's generator is set back where the pass
    ``draws`` from it instead, or no other thread does, since code may seed it by another way than torch's functions.
    """
    switches = [read() for read, _ in _SWITCHES]
    states = random.getstate()
    cpus = torch.default_generator.get_state() if draws or threading.active_count() == 1 else None
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpys = sys.modules.get("numpy.random")
    numpys_state = None if numpys is None else numpys.get_state()
    outer = getattr(_own, "generator", None)
    if not draws:
        _own.generator = torch.Generator().set_state(rng_state())
    try:
        with compat.replaced({} if draws else all_in_pass(_STAND_INS)):
            yield
    finally:
        _own.generator = outer
        for (read, switch), before in zip(_SWITCHES, switches):
            if before is not None and read() != before:
                switch(before)
        random.setstate(states)
        if numpys is not None:
            numpys.set_state(numpys_state)
        if cpus is not None:
            torch.default_generator.set_state(cpus)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection: many small new objects would trigger it, and with torch imported it is slow."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _precision() -> str | None:
    """Return the precision of float32 products; None if it was set by torch's newer settings, which differ."""
    with suppress(RuntimeError):
        return torch.get_float32_matmul_precision()
    return None


_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda before: torch.set_anomaly_enabled(*before),
    ),
    (_precision, torch.set_float32_matmul_precision),
)
"""How switches of torch are read and set."""


@contextmanager
def gradients(enabled: bool) -> Iterator[None]:
    """Switch gradient recording on or off, even inside ``torch.inference_mode()``.

    >>> with torch.inference_mode(), gradients(True):
    ...     torch.ones(2, requires_grad=True).exp().requires_grad
    True
    """
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


_beside: frozenset[int | None] = frozenset()
"""The threads that run beside the pass."""


def is_beside() -> bool:
    """Whether the current thread runs beside the pass rather than as a part of it."""
    return threading.get_ident() in _beside


def in_pass(stand_in: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``stand_in`` in a pass and ``usual`` in threads beside it."""

    @wraps(usual)
    def called(*args: Any, **kwargs: Any) -> Any:
        return (usual if is_beside() else stand_in)(*args, **kwargs)

    return called


def all_in_pass(answers: dict[tuple[Any, str], Any]) -> dict[tuple[Any, str], Any]:
    """Return replacements by module and name, of which functions are replaced in a pass alone."""
    replaced = dict(answers)
    for place, answer in answers.items():
        if isinstance(answer, FunctionType) and hasattr(*place):
            replaced[place] = in_pass(answer, getattr(*place))
    return replaced


_OURS = __name__.partition(".")[0]

_SIGNALS = [int(number) for number in signal.valid_signals()]
_handler_of: Callable[[int], Any] = import_module("_signal").getsignal
"""The function in C: Python's around it, which names the handlers, takes several times as long."""

PATIENCE = 0.1
"""Seconds after which code that reaches no safe point is interrupted where it is, unless it is this package's."""


class HeldError(BaseException):
    """Carries a handler's exception past whatever would catch that exception on the way."""


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


_own = threading.local()
"""``generator`` is that of this thread's pass, if it has one; its state is what counts."""


def _current() -> torch.Generator:
    return getattr(_own, "generator", None) or torch.default_generator


def rng_state() -> torch.Tensor:
    """Return the state from which the pass of this thread draws next."""
    return _current().get_state()


def seed(number: int) -> torch.Generator:
    """Seed the pass of this thread, or the CPU's generator; ``torch.manual_seed`` would also seed a GPU used later."""
    return _current().manual_seed(int(number))


def drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator; one that draws from the CPU's generator draws from the pass's own state."""
    own = getattr(_own, "generator", None)
    if own is None or not draws(func) or kwargs.get("generator") is not None:
        return func(*args, **kwargs)
    taking = taking_generator(func)
    if taking is not None and all(tensor.device.type == "cpu" for tensor in args if isinstance(tensor, torch.Tensor)):
        return taking(*args, **kwargs, generator=own)
    usual = torch.default_generator
    outer = usual.get_state()
    usual.set_state(own.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        own.set_state(usual.get_state())
        usual.set_state(outer)


@lru_cache(maxsize=4096)
def draws(func: Any) -> bool:
    """Whether an operator may draw random numbers."""
    return isinstance(func, OpOverload) and any(torch.Tag.nondeterministic_seeded in f.tags for f in _forms(func))


@lru_cache(maxsize=4096)
def taking_generator(func: Any) -> Any:
    """Return the form of an operator that takes a generator by name besides the operator's own arguments, or None."""
    wanted = _arguments(func) | {"generator": ("Optional[Generator]", True)}
    return next((form for form in _forms(func) if _arguments(form) == wanted), None)


def _arguments(func: Any) -> dict[str, tuple[str, bool]]:
    """Return the type of each of an operator's arguments, and whether it is given by name alone."""
    return {argument.name: (str(argument.type), argument.kwarg_only) for argument in func._schema.arguments}


def _forms(func: Any) -> list[Any]:
    """Return all overloads of an operator."""
    return [getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads()]


_STAND_INS = {
    (place, name): answer
    for place in (torch, torch.random)
    for name, answer in {
        "get_rng_state": rng_state,
        "set_rng_state": lambda new_state: _current().set_state(new_state),
        "manual_seed": seed,
        "seed": lambda: _current().seed(),
    }.items()
}
