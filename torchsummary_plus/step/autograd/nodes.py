"""Operators of gradient formulas that query tensors' class or device in C++, as they run without a mode.

Source: torch/csrc/autograd/FunctionsManual.cpp, ``masked_fill_backward`` and ``renorm_backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

NodeCall = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An operator and its arguments."""


def call_of(node: Any, on_cuda: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeCall:
    """Return the call that an autograd node's formula makes without a mode, in place of this one."""
    change = None if node is None else _CHANGES.get(node.name())
    return (func, args, kwargs) if change is None else change(node, on_cuda, func, args, kwargs)


def _selected(node: Any, on_cuda: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeCall:
    """Select the filled elements' gradients; under a mode torch sums them next to a zero, here any tensor."""
    if func is aten.scalar_tensor.default:
        return aten.alias.default, (node._saved_mask,), {}
    return (aten.masked_select.default, (args[1], args[0]), {}) if func is aten.where.self else (func, args, kwargs)


_SINGLE = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def _single(node: Any, on_cuda: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NodeCall:
    """Compute norms of float32 tensors in float32 on a GPU; under a mode, and on the CPU, torch uses float64."""
    tensor, dtype = args[0], kwargs.get("dtype")
    if on_cuda and dtype in _SINGLE and tensor.dtype.to_real() is torch.float32:
        return func, args, {**kwargs, "dtype": _SINGLE[dtype]}
    return func, args, kwargs


_CHANGES: dict[str, Callable[..., NodeCall]] = {"MaskedFillBackward1": _selected, "RenormBackward0": _single}
