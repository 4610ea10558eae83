"""nn.Module -> LayerSpec: a layer's settings as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from ..data.records import LayerSpec, ParameterSpec, Setting

UNDECLARED = {
    "MultiheadAttention": ("embed_dim", "num_heads", "kdim", "vdim", "add_zero_attn"),
    "RNNCellBase": ("num_chunks",),
}
"""Constants of ``torch.nn`` classes that are missing from their ``__constants__``."""

PLAIN = frozenset({bool, int, str, type(None)})


def layer_spec(module: nn.Module, parameters: Sequence[ParameterSpec]) -> LayerSpec | None:
    """Return a module's settings and parameters; None for a class unknown to torch without parameters."""
    kind = type(module)
    declared = _KNOWN.get(kind)
    if declared is None:
        declared = _KNOWN[kind] = _declared(kind)
    base, names = declared
    settings = tuple((name, value) for name in names for is_plain, value in [_plain(module, name)] if is_plain)
    known = [p for p in parameters if not p.is_uninitialised]
    if not settings and not known:
        return None
    return LayerSpec(base, settings, tuple((p.name, p.shape, p.dtype) for p in known))


_KNOWN: WeakKeyDictionary[type, tuple[str, tuple[str, ...]]] = WeakKeyDictionary()
"""Cache by class, for as long as the class lives."""


def _declared(kind: type) -> tuple[str, tuple[str, ...]]:
    """Return the nearest class exported by ``torch.nn`` and the names of its constants."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("torch.nn.") and base is not nn.Module]
    exported = [base.__name__ for base in bases if getattr(nn, base.__name__, None) is base]
    if not exported:
        return "", ()
    declared = [name for base in bases for name in vars(base).get("__constants__", ())]
    more = [name for base in bases for name in UNDECLARED.get(base.__name__, ())]
    return exported[0], tuple(dict.fromkeys(declared + more))


def _plain(module: nn.Module, name: str) -> tuple[bool, Setting]:
    """Return whether an attribute is a plain value, and the value."""
    value: Any = getattr(module, name, ...)
    kind = type(value)
    if kind in PLAIN or (kind is float and isfinite(value)):
        return True, value
    if isinstance(value, (tuple, list)) and all(type(item) is int for item in value):
        return True, tuple(value)
    return False, None
