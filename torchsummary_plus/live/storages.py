"""The plain tensors that hold any tensor's elements (wrapper, packed weight, sparse or nested), which rebuild it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from . import compat
from .fakes import OF_FAKES, Fake, UnfakeableError, dress
from .structures import CLASSES, all_tensors, inner_names, inner_tensors, is_wrapper, slot_values

_NESTED = ("values", "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")


def stored(tensor: Tensor) -> list[Tensor]:
    """Return the strided tensors that hold a tensor's elements: itself or its parts; none if torch hides them.

    >>> [tuple(part.shape) for part in stored(torch.eye(3).to_sparse())]
    [(3,), (2, 3)]
    """
    if not isinstance(tensor, Fake):
        if compat.is_functorch_wrapped(tensor):
            return stored(compat.functorch_unwrapped(tensor))
        if type(tensor) in CLASSES and tensor.layout is torch.strided and not tensor.is_nested:
            return [tensor]
        inner = inner_tensors(tensor)
        if inner:
            return all_stored(inner)
        if tensor.is_nested:
            with compat.no_modes():
                return [getattr(tensor, name)() for name in _NESTED]
        if tensor.layout is not torch.strided:
            return []
    if type(tensor) in CLASSES or compat.is_torch_fake(tensor):
        return [tensor]
    attributes = {name: value for name, value in vars(tensor).items() if name not in OF_FAKES}
    return [tensor, *all_stored(all_tensors(attributes))]  # Such as the scales of packed weights.


def is_transformed(tensor: object) -> bool:
    """Whether the value is a tensor under a ``torch.func`` transform."""
    return isinstance(tensor, Tensor) and bool(compat.is_functorch_wrapped(tensor))


def all_stored(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the strided tensors that hold the elements of several tensors, in order."""
    return [part for tensor in tensors for part in stored(tensor)]


Change = Callable[[Tensor], Tensor]


def remade(tensor: Tensor, change: Change) -> Tensor:
    """Apply ``change`` to a tensor, keeping its class and attributes; of a wrapper, every inner tensor is changed.

    Operators on the new wrapper run its own class's code on the changed parts.
    """
    if is_wrapper(tensor):
        wrapper: Tensor = _wrapper(tensor, lambda inner: remade(inner, change))
        return wrapper
    changed = change(tensor)
    return tensor if changed is tensor else dress(changed, type(tensor), vars(tensor))


def _wrapper(tensor: Any, change: Change) -> Any:
    originals = {name: getattr(tensor, name) for name in inner_names(tensor)}
    inner = {name: change(part) for name, part in originals.items()}
    if all(inner[name] is part for name, part in originals.items()):
        return tensor
    if type(tensor).__module__.startswith("torch.distributed") and any(isinstance(t, Fake) for t in inner.values()):
        raise UnfakeableError(f"no fake tensor can represent a {tensor.layout} tensor of class {type(tensor).__name__}")
    with torch.no_grad():
        if hasattr(tensor, "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()
            parts = {name: inner[name] if name in inner else getattr(tensor, name) for name in names}
            wrapper = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
        else:
            wrapper = _by_attributes(tensor, inner)
    for name, value in vars(tensor).items():
        if name not in vars(wrapper):
            setattr(wrapper, name, value)
    if isinstance(tensor, nn.Parameter):
        wrapper._is_param = True
    return wrapper if wrapper.requires_grad == tensor.requires_grad else wrapper.requires_grad_(tensor.requires_grad)


def _by_attributes(tensor: Any, inner: dict[str, Tensor]) -> Any:
    """Rebuild a wrapper that has no ``__tensor_unflatten__``, with its attributes and the changed tensors."""
    wrapper = torch.Tensor._make_wrapper_subclass(
        type(tensor),
        tensor.size(),
        strides=tensor.stride(),
        storage_offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        layout=tensor.layout,
        device=next(iter(inner.values())).device,
    )
    for name, value in {**slot_values(tensor), **vars(tensor), **inner}.items():
        setattr(wrapper, name, value)
    return wrapper
