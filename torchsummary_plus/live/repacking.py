"""Fresh copies of the C++ objects in which quantized modules keep their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from . import compat
from .modules import packed_objects


def repacked(state: Any) -> Any:
    """Return a packed object, or a state that contains some, packed afresh as before its first call.

    In its first call an object packs its weights once more (QNNPACK) or adds its kernel's buffers (oneDNN). An object
    that cannot be pickled is returned itself.
    """
    if isinstance(state, torch.ScriptObject):
        packed: Any = state
        if not packed._has_method("__getstate__"):
            return packed
        new: Any = torch.ScriptObject.__new__(type(packed))
        try:
            new.__setstate__(repacked(packed.__getstate__()))
        except RuntimeError:  # The current engine cannot unpack it, as QNNPACK cannot unpack a 3-d convolution.
            return packed
        return new
    return type(state)(map(repacked, state)) if isinstance(state, (list, tuple)) else state


@contextmanager
def with_repacked(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Give modules fresh copies of their packed objects, so that the originals do not change.

    Scripted modules keep theirs.
    """
    plain = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
    originals: list[tuple[dict[str, Any], str, Any]] = []
    copies: dict[int, Any] = {}
    for module in plain:
        ids = {id(packed) for packed in packed_objects(module)}
        originals += [(vars(module), name, value) for name, value in vars(module).items() if id(value) in ids]
    try:
        with compat.no_modes(), compat.no_function(), torch.no_grad():
            for values, name, packed in originals:
                if id(packed) not in copies:
                    copies[id(packed)] = repacked(packed)
                values[name] = copies[id(packed)]
        yield
    finally:
        for values, name, packed in originals:
            values[name] = packed
