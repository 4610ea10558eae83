"""Operators that run on real tensors inside a dispatch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..live import compat
from ..live.autocast import autocast_inside
from ..live.own_random import drawn

_CONJUGATE = torch.ops.aten._conj.default

Kernel = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def run_really(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the operator itself: the kernel of a real pass. Autocast reaches the inside of other libraries' kernels."""
    if getattr(func, "namespace", "aten") == "aten":
        return called(func, args, kwargs)
    with autocast_inside("cpu"), autocast_inside("cuda"):
        return func(*args, **kwargs)


def called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator of torch, whose kernels read address 0 for a tangent of zeros unless torch may replace it.

    The engine conjugates a complex number as a number, which torch 2.4 itself refuses: it is made a tensor.
    """
    if func is _CONJUGATE and isinstance(args[0], complex):
        args = (torch.scalar_tensor(args[0], dtype=torch.complex128),)
    if any(isinstance(value, Tensor) and value._is_zerotensor() for value in chain(args, kwargs.values())):
        with compat.zeros_replaced():
            return func(*args, **kwargs)
    return drawn(func, args, kwargs)
