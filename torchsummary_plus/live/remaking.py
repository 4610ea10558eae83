"""Rebuild any tensor from changed parts: a wrapper is rebuilt around its changed inner tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .fakes import Fake, UnfakeableError, dress
from .structures import inner_names, is_wrapper, slot_names

Change = Callable[[Tensor], Tensor]


def remade(tensor: Tensor, change: Change) -> Tensor:
    """Apply ``change`` to a tensor, keeping its class and attributes; of a wrapper, every inner tensor is changed.

    Operators on the new wrapper run its own class's code on the changed parts.
    """
    if is_wrapper(tensor):
        made: Tensor = _wrapper(tensor, lambda inner: remade(inner, change))
        return made
    return dress(change(tensor), type(tensor), vars(tensor))


def _wrapper(tensor: Any, change: Change) -> Any:
    held = {name: getattr(tensor, name) for name in inner_names(tensor)}
    inner = {name: change(part) for name, part in held.items()}
    if all(inner[name] is part for name, part in held.items()):
        return tensor
    if type(tensor).__module__.startswith("torch.distributed") and any(isinstance(t, Fake) for t in inner.values()):
        raise UnfakeableError(f"no fake tensor can stand for a {tensor.layout} tensor of class {type(tensor).__name__}")
    with torch.no_grad():
        if hasattr(tensor, "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()
            parts = {name: inner[name] if name in inner else getattr(tensor, name) for name in names}
            made = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
        else:
            made = _by_attributes(tensor, inner)
    for name, value in vars(tensor).items():
        if name not in vars(made):
            setattr(made, name, value)
    if isinstance(tensor, nn.Parameter):
        made._is_param = True
    return made if made.requires_grad == tensor.requires_grad else made.requires_grad_(tensor.requires_grad)


def _by_attributes(tensor: Any, inner: dict[str, Tensor]) -> Any:
    """Rebuild a wrapper that has no ``__tensor_unflatten__``, with its attributes and the changed tensors."""
    made = torch.Tensor._make_wrapper_subclass(
        type(tensor),
        tensor.size(),
        strides=tensor.stride(),
        storage_offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        layout=tensor.layout,
        device=next(iter(inner.values())).device,
    )
    held = {name: getattr(tensor, name) for name in slot_names(tensor) if hasattr(tensor, name)}
    for name, value in {**held, **vars(tensor), **inner}.items():
        setattr(made, name, value)
    return made
