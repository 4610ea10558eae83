"""Whether autocast is active inside an operator's kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Any

import torch

from . import compat

_EVERYWHERE = ("_trilinear", "_euclidean_dist", "linalg_pinv.atol_rtol_tensor")
_CAST_INSIDE = {"cpu": _EVERYWHERE, "cuda": (*_EVERYWHERE, "ldexp.Tensor", "ldexp_", "mvlgamma", "mvlgamma_")}
_COMPOSITES = (torch.DispatchKey.CompositeExplicitAutograd, torch.DispatchKey.CompositeExplicitAutogradNonFunctional)


@cache
def kernel_cast_within(operator: Any, device: str) -> Callable[..., Any] | None:
    """Return an operator's composite kernel if autocast casts only the operators inside it, else None.

    Such a kernel calls operators through the dispatcher, below autograd, and autocast has kernels for some of them;
    ``tests/live/test_autocast.py`` looks for these among all of torch's.
    """
    if operator.name().removeprefix("aten::") not in _CAST_INSIDE.get(device, ()):
        return None
    key = next(key for key in _COMPOSITES if compat.has_kernel(operator.name(), key.name))
    return partial(operator._op_dk, key)


def is_cast_inside(device: str) -> bool:
    """Whether autocast is active inside the kernel of the operator that a dispatch mode is handling.

    In a mode autocast is always off. torch restores here the state that the operator was called under, without
    autocast if the operator has an autocast kernel. If Python called the mode, as ``torch.cond`` does, no state exists.
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
