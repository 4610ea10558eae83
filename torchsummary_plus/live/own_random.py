"""A state of random numbers of a pass's own, so that those of other threads, and the caller's, go on undisturbed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from . import compat


class _Own(threading.local):
    """The generator of this thread's pass, if it has one; its state is what counts."""

    generator: torch.Generator | None = None


_own = _Own()


@contextmanager
def own_random() -> Iterator[None]:
    """Inside the block, draw from a state that begins as the current one.

    Operators draw from it through :func:`drawn`, and so do torch's functions that read or set the state. Another block
    inside goes on with its own copy.
    """
    outer, own = _own.generator, torch.Generator()
    own.set_state(rng_state())
    _own.generator = own
    try:
        with compat.replaced(_STAND_INS):
            yield
    finally:
        _own.generator = outer


def _current() -> torch.Generator:
    return torch.default_generator if _own.generator is None else _own.generator


def rng_state() -> torch.Tensor:
    """Return the state from which the pass of this thread draws next."""
    return _current().get_state()


def seed(number: int) -> torch.Generator:
    """Seed the pass of this thread, or the CPU's generator; ``torch.manual_seed`` would also seed a GPU used later."""
    return _current().manual_seed(int(number))


def drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator; one that draws from the CPU's generator draws from the pass's own state."""
    own = _own.generator
    if own is None or not draws(func) or kwargs.get("generator") is not None:
        return func(*args, **kwargs)
    taking = taking_generator(func)
    if taking is not None and all(tensor.device.type == "cpu" for tensor in args if isinstance(tensor, torch.Tensor)):
        return taking(*args, **kwargs, generator=own)
    with own_state():
        return func(*args, **kwargs)


@contextmanager
def own_state() -> Iterator[None]:
    """Inside the block, let the CPU's generator have the state of this thread's pass, if it has one."""
    own, usual = _own.generator, torch.default_generator
    if own is None:
        yield
        return
    outer = usual.get_state()
    usual.set_state(own.get_state())
    try:
        yield
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
    own = _arguments(func)[0]
    for form in _forms(func):
        others, takes = _arguments(form)
        if takes and others == own:
            return form
    return None


def _arguments(func: Any) -> tuple[list[tuple[str, str]], bool]:
    """Return the names and types of an operator's arguments but for a generator, and whether it takes one by name."""
    arguments = func._schema.arguments
    takes = any(argument.name == "generator" and argument.kwarg_only for argument in arguments)
    return [(argument.name, str(argument.type)) for argument in arguments if argument.name != "generator"], takes


def _forms(func: Any) -> list[Any]:
    """Return all overloads of an operator."""
    return [getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads()]


_ANSWERS: dict[str, Callable[..., Any]] = {
    "get_rng_state": rng_state,
    "set_rng_state": lambda new_state: _current().set_state(new_state),
    "manual_seed": seed,
    "seed": lambda: _current().seed(),
}


def _of_pass(name: str) -> Callable[..., Any]:
    """Return torch's function for other threads, and the pass's own for this one."""
    usual = getattr(torch.random, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return (usual if _own.generator is None else _ANSWERS[name])(*args, **kwargs)

    return function


_STAND_INS = {(place, name): _of_pass(name) for place in (torch, torch.random) for name in _ANSWERS}
