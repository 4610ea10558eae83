"""A module's methods during a pass: a watched ``forward``, and copying that makes unwatched copies."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn

CallForward = Callable[[Callable[..., Any], Any, Any], Any]
"""``call(forward, args, kwargs)``, which runs a module's own forward under watch."""


def stand_ins(module: nn.Module, call: CallForward) -> dict[str, Any]:
    """Return the instance attributes through which a module is watched.

    A copy made during the pass has none of them and runs its own forward. They refer to the module weakly: it is freed
    at once where a step replaces it.
    """
    if isinstance(module, torch.jit.ScriptModule) and not hasattr(module, "forward"):
        return {}  # A traced model's submodule that was never called, such as one that holds packed weights.
    own, known = module.forward, weakref.ref(module)
    bound: Any = own.__func__ if isinstance(own, MethodType) and own.__self__ is module else None
    if bound is not None:
        own = partial(bound, weakref.proxy(module))

    def watched(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # A branch of torch.cond, which torch compiles itself.
            return own(*args, **kwargs) if bound is None else bound(known(), *args, **kwargs)
        return call(own if bound is None else MethodType(bound, known()), args, kwargs)

    watched.__wrapped__ = own  # type: ignore[attr-defined]
    if isinstance(module, torch.jit.ScriptModule):
        return {"forward": watched}
    originals = originals_of(module)

    def deep_copy(memo: dict[int, Any]) -> Any:
        with _unwatched(known(), originals) as module:
            return copy.deepcopy(module, memo)

    def state() -> Any:
        with _unwatched(known(), originals) as module:
            own = module.__reduce_ex__(_PROTOCOL)[2]
            return dict(own) if isinstance(own, dict) else own

    return dict(zip(_REPLACED, (watched, deep_copy, state)))


_REPLACED = "forward", "__deepcopy__", "__getstate__"
"""The module's forward, and what :mod:`copy` and :mod:`pickle` look up on an instance before its class."""
_PROTOCOL = 4
"""The pickle protocol with which :mod:`copy` reads an object's state."""


@contextmanager
def _unwatched(module: nn.Module | None, originals: dict[str, Any]) -> Iterator[nn.Module]:
    """Inside the block, let a module have its own attributes."""
    assert module is not None
    watching = originals_of(module)
    put_back(module, originals)
    try:
        yield module
    finally:
        vars(module).update(watching)


def originals_of(module: nn.Module) -> dict[str, Any]:
    """Return the module's own instance attributes that :func:`stand_ins` replaces."""
    return {name: vars(module)[name] for name in _REPLACED if name in vars(module)}


def put_back(module: nn.Module, originals: dict[str, Any]) -> None:
    """Remove the attributes of :func:`stand_ins` and restore a module's own."""
    for name in _REPLACED:
        vars(module).pop(name, None)
    vars(module).update(originals)
