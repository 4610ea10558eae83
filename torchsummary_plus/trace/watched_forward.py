"""A module's methods during a pass: a watched ``forward``, and copying that makes unwatched copies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

CallForward = Callable[[Callable[..., Any], Any, Any], Any]
"""``call(forward, args, kwargs)``, which runs a module's own forward under watch."""


def stand_ins(module: nn.Module, call: CallForward) -> dict[str, Any]:
    """Return the instance attributes through which a module is watched.

    A copy made during the pass has none of them and runs its own forward.
    """
    if isinstance(module, torch.jit.ScriptModule) and not hasattr(module, "forward"):
        return {}  # A traced model's submodule that was never called, such as one that holds packed weights.
    forward = module.forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # A branch of torch.cond, which torch compiles itself.
            return forward(*args, **kwargs)
        return call(forward, args, kwargs)

    watched.__wrapped__ = forward  # type: ignore[attr-defined]
    if isinstance(module, torch.jit.ScriptModule):
        return {"forward": watched}
    originals = originals_of(module)

    @contextmanager
    def unwatched() -> Iterator[None]:
        watching = originals_of(module)
        put_back(module, originals)
        try:
            yield
        finally:
            vars(module).update(watching)

    def deep_copy(memo: dict[int, Any]) -> Any:
        with unwatched():
            return copy.deepcopy(module, memo)

    def state() -> Any:
        with unwatched():
            own = module.__reduce_ex__(_PROTOCOL)[2]
            return dict(own) if isinstance(own, dict) else own

    return dict(zip(_REPLACED, (watched, deep_copy, state)))


_REPLACED = "forward", "__deepcopy__", "__getstate__"
"""The module's forward, and what :mod:`copy` and :mod:`pickle` look up on an instance before its class."""
_PROTOCOL = 4
"""The pickle protocol with which :mod:`copy` reads an object's state."""


def originals_of(module: nn.Module) -> dict[str, Any]:
    """Return the module's own instance attributes that :func:`stand_ins` replaces."""
    return {name: vars(module)[name] for name in _REPLACED if name in vars(module)}


def put_back(module: nn.Module, originals: dict[str, Any]) -> None:
    """Remove the attributes of :func:`stand_ins` and restore a module's own."""
    for name in _REPLACED:
        vars(module).pop(name, None)
    vars(module).update(originals)
