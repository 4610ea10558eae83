"""Fresh copies of the C++ objects in which quantized modules keep their weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from . import compat
from .packed import packed_objects


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


def repack(modules: Iterable[nn.Module]) -> None:
    """Give copies of modules fresh copies of their packed objects, so that the originals do not change.

    Scripted modules keep theirs.
    """
    copies: dict[int, Any] = {}
    with compat.no_modes(), compat.no_function(), torch.no_grad():
        for module in modules:
            ids = set() if isinstance(module, torch.jit.ScriptModule) else set(map(id, packed_objects(module)))
            for name, value in list(vars(module).items()):
                if id(value) in ids:
                    if id(value) not in copies:
                        copies[id(value)] = repacked(value)
                    vars(module)[name] = copies[id(value)]
