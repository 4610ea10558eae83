"""Scratch memory of other libraries' operators on the CPU: each runs once on zeros under the profiler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.profiler import ProfilerActivity

from ..live import compat
from ..live.fakes import CPU, Fake
from ..ops.macs import multiply_adds
from ..trace.kernels import change_tensors, tensors_of
from ..watch.profiled import changes
from ..watch.quiet_profile import QuietProfile

LARGEST = 1 << 25
"""Most elements of an operator's arguments and results for it to run: 128 MiB in float32."""

LONGEST = 10**10
"""Most multiply-adds of an operator for it to run: less than a second on one core."""

NOT_LIBRARIES = frozenset(
    {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp"}
)
"""torch's own operators, profiler annotations, and communication between processes."""


def is_foreign(name: str) -> bool:
    """Whether an operator belongs to a library that no rules are written for.

    >>> is_foreign("aten::mm"), is_foreign("torchvision::nms")
    (False, True)
    """
    return name.partition("::")[0] not in NOT_LIBRARIES


_seen: dict[Any, int | None] = {}
_REMEMBERED = 10_000


def foreign_scratch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int | None:
    """Return the most bytes an operator holds on the CPU besides its results; None if it cannot be tried.

    It runs on zeros in the fakes' shapes and on copies of tensors with values, so nothing else is written to.
    """
    func = _overload(name)
    given = tensors_of((*args, *kwargs.values(), out))
    if func is None or compat.profiler_enabled() or sum(tensor.numel() for tensor in given) > LARGEST:
        return None
    if (multiply_adds(func, args, kwargs, out) or 0) > LONGEST:
        return None
    key = name, tuple(_key((args, kwargs)))
    try:
        known = key in _seen
    except TypeError:
        return _tried(func, args, kwargs)
    if not known:
        if len(_seen) >= _REMEMBERED:
            _seen.clear()
        _seen[key] = _tried(func, args, kwargs)
    return _seen[key]


def _tried(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    with compat.no_modes(), torch.no_grad():
        given, named = change_tensors(args, _real), change_tensors(kwargs, _real)
        try:
            func(*given, **named)  # Allocates what the library creates once and keeps.
            with QuietProfile(activities=[ProfilerActivity.CPU], profile_memory=True) as done:
                result = func(*given, **named)
        except Exception:
            return None
        level = peak = 0
        for change in changes(done, "cpu"):
            level += change.nbytes
            peak = max(peak, level)
        before = {tensor.untyped_storage()._cdata for tensor in tensors_of((given, tuple(named.values())))}
        made = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors_of(result)}
        return peak - sum(nbytes for storage, nbytes in made.items() if storage not in before)


def _real(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Fake):
        return tensor.detach().clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU).zero_()


def _key(values: Any) -> Iterator[Any]:
    """Yield everything that an operator's memory may depend on, except tensors' contents."""
    for value in values.items() if isinstance(values, dict) else values:
        if isinstance(value, Tensor):
            yield value.shape, value.stride() if value.layout is torch.strided else value.layout, value.dtype
        elif isinstance(value, (list, tuple, dict)):
            yield len(value)
            yield from _key(value)
        else:
            yield value.__class__, id(value) if isinstance(value, torch.ScriptObject) else value


@cache
def _overload(name: str) -> OpOverload | None:
    """Return the operator overload of a full name, such as ``torchvision::nms`` or ``aten::add.Tensor``."""
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    found: Any = getattr(getattr(getattr(torch.ops, namespace), operator, None), overload or "default", None)
    return found if isinstance(found, OpOverload) else None
