"""Whether autocast is active inside an operator's kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Any

import torch

from . import compat
from .copying import Copier
from .structures import all_tensors

_COMPOSITES = (torch.DispatchKey.CompositeExplicitAutograd, torch.DispatchKey.CompositeExplicitAutogradNonFunctional)
_ON_CUDA = ("aten::_foreach_", "aten::_fused_", "aten::_grouped_mm", "aten::_chunk_cat", "aten::convolution_backward")
"""Composite operators with another kernel in torch's CUDA builds, which a CPU build does not list."""


def kernel_cast_within(operator: Any, device: str, args: Sequence[Any]) -> Callable[..., Any] | None:
    """Return an operator's composite kernel if autocast casts only the operators inside it, else None.

    Such a kernel calls operators through the dispatcher, below autograd, and autocast has kernels for some of them.
    """
    kernel = _composite(operator, device)
    if kernel is None:
        return None
    tensors = all_tensors(args)
    if not all(tensor.layout is torch.strided for tensor in tensors):
        return None
    key = operator, device, *((tensor.dtype, tensor.dim()) for tensor in tensors)
    if key not in _known:
        copier = Copier(lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta"))
        listening = _Listening(device)
        with compat.no_modes(), listening, suppress(RuntimeError, TypeError, ValueError, IndexError):
            kernel(*copier.of(list(args)))
        _known[key] = listening.heard
    return kernel if _known[key] else None


_known: dict[Any, bool] = {}


@cache
def _composite(operator: Any, device: str) -> Callable[..., Any] | None:
    """Return the kernel below autograd by which an operator of torch's calls others on a device, or None."""
    name = operator.name()
    own = "CPU", device.upper(), f"Autocast{device.upper()}"
    if operator.namespace != "aten" or operator.is_view or any(compat.has_kernel(name, key) for key in own):
        return None
    if device == "cuda" and name.startswith(_ON_CUDA):
        return None
    keys = (key for key in _COMPOSITES if compat.has_kernel(name, key.name))
    return next((partial(operator._op_dk, key) for key in keys), None)


class _Listening(compat.DispatchMode):
    """Records whether an operator with an autocast kernel was called."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key = f"Autocast{device.upper()}"
        self.heard: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if compat.has_kernel(func.name(), self.key):
            self.heard = True
        return func(*args, **(kwargs or {}))


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
