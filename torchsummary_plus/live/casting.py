"""Where autocast is on inside an operator's kernel, and where it is off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Any

import torch

from . import compat

_CAST_WITHIN = frozenset({"aten::_trilinear", "aten::linalg_pinv.atol_rtol_tensor"})
"""Operators whose composite kernels multiply through the dispatcher, below autograd (Linear.cpp, LinearAlgebra.cpp)."""


@cache
def kernel_cast_within(operator: Any) -> Callable[..., Any] | None:
    """Return the composite kernel of an operator that autocast reaches only inside, or None."""
    if operator.name() not in _CAST_WITHIN:
        return None
    return partial(operator._op_dk, torch.DispatchKey.CompositeExplicitAutogradNonFunctional)


def is_cast_inside(device: str) -> bool:
    """Whether autocast reaches the inside of the kernel whose operator a dispatch mode is handling.

    In a mode autocast is always off. The operator was called under the state that torch restores here, less autocast
    if autocast has a kernel for it. Where Python called the mode, as ``torch.cond`` does, there is no such state.
    """
    with ExitStack() as stack:
        with suppress(RuntimeError):
            stack.enter_context(compat.as_called())
        return torch.is_autocast_enabled(device)


@contextmanager
def autocast_inside(device: str) -> Iterator[None]:
    """Run a kernel under the autocast that its operator was called under, inside a dispatch mode."""
    is_on, outer = is_cast_inside(device), torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, is_on)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, outer)


@cache
def cast_functions(device: str) -> frozenset[str]:
    """Return the operators, without overloads, that autocast on a kind of device has a kernel for.

    Autocast is off in what such a kernel calls.

    >>> "mm" in cast_functions("cpu"), "relu" in cast_functions("cpu")
    (True, False)
    """
    registered = compat.composite_registrations(f"Autocast{device.upper()}")
    return frozenset(name.removeprefix("aten::").partition(".")[0] for name in registered)
