"""What a pass changes in the process: one pass at a time, whose random numbers, switches and names are put back.

Methods and the code of imported modules are not copied. While a pass runs, the names through which they find objects
(globals, attributes of classes, closures) refer to copies.
"""

from __future__ import annotations

import operator
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch

from ..live import compat
from ..live.copying import USUAL, Copier, content_of
from ..live.interrupts import signals_held
from ..live.reach import Reached
from ..live.threads import others_noted

_LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):  # A thread that held it exists in the parent alone.
    os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=threading.RLock()))


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
    states = [setting.read() for setting in settings]
    try:
        yield
    finally:
        for setting, state in zip(settings, states):
            if state is not None and not setting.same(state, setting.read()):
                setting.write(state)


class Setting(NamedTuple):
    """How to read a part of the global state, how to write it, and whether two values are the same."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    same: Callable[[Any, Any], bool] = operator.eq


_CPU_GENERATOR = Setting(torch.default_generator.get_state, torch.default_generator.set_state, torch.equal)


def _settings() -> Iterator[Setting]:
    yield Setting(_precision, torch.set_float32_matmul_precision)
    yield Setting(
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1]),
    )
    yield Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda state: torch.set_anomaly_enabled(*state),
    )
    yield Setting(torch.get_default_dtype, torch.set_default_dtype)
    yield Setting(random.getstate, random.setstate)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        yield Setting(
            numpy_random.get_state,
            numpy_random.set_state,
            lambda old, now: old[2:] == now[2:] and bool((old[1] == now[1]).all()),
        )
    if torch.cuda.is_initialized():
        read, write = torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all
        yield Setting(read, write, lambda old, now: all(map(torch.equal, old, now)))


def _precision() -> str | None:
    """Return the precision of float32 products; None if it was set by torch's newer settings, which differ."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


Place = tuple[Any, Any, Any]
"""A dictionary, closure's cell, class or function, the key or attribute, and the value there."""
_EMPTY = object()


@contextmanager
def names_replaced(copier: Copier, reach: Reached | None = None) -> Iterator[None]:
    """Inside the block, let the names that code uses which is not copied refer to copies, one for each value.

    ``reach`` is what all the code reaches; if None, it is found from what has been copied. Names have their values
    again afterwards, also those to which the code has assigned.
    """
    if reach is None:
        kinds = [kind for kind in copier.kinds() if kind not in USUAL and not _is_torchs(kind)]
        reach = Reached([*kinds, *copier.functions, *filter(None, compat.global_hooks)])
    classes = [(kind, dict(vars(kind))) for kind in dict.fromkeys(reach.classes) if not issubclass(kind, Enum)]
    own: list[Place] = []
    replaced: list[Place] = []
    for holder, name, value in _places(reach, copier, classes):  # One after the other: a global may be a function.
        own.append((holder, name, value))
        replaced.append((holder, name, copier.of(value)))
    try:
        while replaced:  # Afterwards only the copies hold each other.
            _put(*replaced.pop())
        yield
    finally:
        for place in own:
            _put(*place)
        for kind, attributes in classes:
            _reset(kind, attributes)


def _is_torchs(kind: type) -> bool:
    """Whether a class is one of torch's layers, rather than made at run time as for a parametrization."""
    name = kind.__module__
    return name.startswith("torch.nn.modules.") and vars(sys.modules[name]).get(kind.__name__) is kind


def _places(reach: Reached, copier: Copier, classes: list[tuple[type, dict[str, Any]]]) -> Iterator[Place]:
    """Yield the places in which code that is not copied finds values; functions that are have their own."""
    for namespace, name, function in reach.globals:
        if function is None or copier.known(function) is None:
            yield namespace, name, namespace[name]
    for hooks in compat.global_hooks:
        yield from ((hooks, key, hook) for key, hook in hooks.items())
    for cell, function in reach.cells:
        if copier.known(function) is None:
            yield cell, None, next(iter(content_of(cell)), _EMPTY)
    for function in reach.functions:
        if copier.known(function) is not None:
            continue
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                yield function, name, getattr(function, name)
        yield from ((vars(function), name, value) for name, value in vars(function).items())
    for kind, attributes in classes:
        for name, value in attributes.items():  # The user's values, rather than methods or Python's own.
            is_method = isinstance(value, (FunctionType, classmethod)) or hasattr(value, "__get__")
            if not name.startswith("__") and not is_method:
                yield kind, name, value


def _put(holder: Any, name: Any, value: Any) -> None:
    """Put a value in its place, unless it is there."""
    if isinstance(holder, CellType):
        if next(iter(content_of(holder)), _EMPTY) is value:
            return
        if value is _EMPTY:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif isinstance(holder, dict):
        if holder.get(name, _EMPTY) is not value:
            holder[name] = value
    elif isinstance(holder, type):
        if vars(holder).get(name, _EMPTY) is not value:
            setattr(holder, name, value)
    elif getattr(holder, name) is not value:
        setattr(holder, name, value)


def _reset(kind: type, own: Mapping[str, Any]) -> None:
    """Restore a class's attributes, except those that Python and torch add to it."""
    now = dict(vars(kind))
    for name in now.keys() | own.keys():
        if name not in own and Reached([now[name]]).tensors:
            delattr(kind, name)
        elif name in own and now.get(name) is not own[name] and not name.startswith("__"):
            setattr(kind, name, own[name])


@contextmanager
def gradients(enabled: bool) -> Iterator[None]:
    """Switch gradient recording on or off, even inside ``torch.inference_mode()``.

    >>> with torch.inference_mode(), gradients(True):
    ...     torch.ones(2, requires_grad=True).exp().requires_grad
    True
    """
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield
