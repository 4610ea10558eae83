"""What a pass changes in the process: one pass at a time, whose random numbers and switches are put back."""

from __future__ import annotations

import operator
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..live import compat
from ..live.interrupts import signals_held
from ..live.threads import others_noted

_LOCK = threading.RLock()


def _unlock() -> None:
    """Forget the lock in a forked child: a thread that held it exists in the parent alone."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


@contextmanager
def one_pass() -> Iterator[None]:
    """Serialise passes, which replace functions of torch, hold what signals raise until a safe point, and suspend a
    caller's ``FakeTensorMode``.
    """
    with _LOCK, signals_held(), others_noted(), compat.outside_fake_mode():
        yield


@contextmanager
def global_state_kept(draws: bool = False) -> Iterator[None]:
    """Set back the random generators and switches of torch, Python and NumPy that a pass has changed.

    The CPU's generator is set back where the pass ``draws`` from it, or no other thread does; a pass of its own leaves
    it alone, but for code that seeds it by another way than torch's functions.
    """
    settings = [*_settings(), *([_CPU_GENERATOR] if draws or threading.active_count() == 1 else [])]
    states = [(setting, setting.read()) for setting in settings]
    try:
        yield
    finally:
        for setting, state in states:
            _set_back(setting, state)


class Setting(NamedTuple):
    """How to read a part of the global state, how to write it, and whether two values are the same."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    same: Callable[[Any, Any], bool] = operator.eq


_CPU_GENERATOR = Setting(torch.default_generator.get_state, torch.default_generator.set_state, torch.equal)


def _settings() -> Iterator[Setting]:
    yield Setting(_precision, torch.set_float32_matmul_precision)
    yield Setting(_determinism, lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1]))
    yield Setting(_anomalies, lambda state: torch.set_anomaly_enabled(*state))
    yield Setting(torch.get_default_dtype, torch.set_default_dtype)
    yield Setting(random.getstate, random.setstate)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        yield Setting(numpy_random.get_state, numpy_random.set_state, _same_numpy)
    if torch.cuda.is_initialized():
        yield Setting(torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all, _same_tensors)


def _same_numpy(before: Any, now: Any) -> bool:
    return bool(before[2:] == now[2:] and (before[1] == now[1]).all())


def _same_tensors(before: Any, now: Any) -> bool:
    return all(map(torch.equal, before, now))


def _set_back(setting: Setting, state: Any) -> None:
    if state is not None and not setting.same(state, setting.read()):
        setting.write(state)


def _precision() -> str | None:
    """Return the precision of float32 products; None if it was set by torch's newer settings, which differ."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
