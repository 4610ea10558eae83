"""Whether a model or a step's functions are compiled by ``torch.compile``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

from torch import nn

from .copying import content_of


def has_compiled(values: Iterable[Any]) -> bool:
    """Return whether a module, a submodule, a function, or anything a function refers to is compiled.

    >>> has_compiled([nn.Linear(2, 2), len])
    False
    """
    if "torch._dynamo" not in sys.modules:
        return False
    return any(_is_compiled(named) for value in values for named in (value, *_named(value)))


def _is_compiled(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return any(
            "_orig_mod" in m._modules or getattr(m, "_compiled_call_impl", None) or _is_compiled(vars(m).get("forward"))
            for m in value.modules()
        )
    if not isinstance(value, FunctionType) or getattr(value, "_torchdynamo_disable", False):
        return False
    return hasattr(value, "_torchdynamo_orig_callable")


def _named(value: Any) -> Iterator[Any]:
    """Yield the objects that a function's closure and code refer to."""
    if isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            yield from content_of(cell)
        for name in value.__code__.co_names:
            if name in value.__globals__:
                yield value.__globals__[name]
