"""The plain tensors that hold any tensor's elements: wrapper, packed weight, sparse or nested tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from . import compat
from .fakes import OF_FAKES, Fake
from .structures import CLASSES, all_tensors, inner_tensors

_NESTED = ("values", "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")


def stored(tensor: Tensor) -> list[Tensor]:
    """Return the strided tensors that hold a tensor's elements: itself or its parts; none if torch hides them.

    >>> [tuple(part.shape) for part in stored(torch.eye(3).to_sparse())]
    [(3,), (2, 3)]
    """
    if isinstance(tensor, Fake):
        return [tensor, *all_stored(companions(tensor))]
    if is_transformed(tensor):
        return stored(compat.functorch_unwrapped(tensor))
    inner = inner_tensors(tensor)
    if inner:
        return all_stored(inner)
    if tensor.is_nested:
        with compat.no_modes():
            return [getattr(tensor, name)() for name in _NESTED]
    if tensor.layout is not torch.strided:
        return []
    return [tensor, *all_stored(companions(tensor))]


def companions(tensor: Tensor) -> list[Tensor]:
    """Return the tensors in attributes of a user's tensor class, such as the scales of packed weights."""
    if type(tensor) in CLASSES or compat.is_torch_fake(tensor):
        return []
    return all_tensors({name: value for name, value in vars(tensor).items() if name not in OF_FAKES})


def is_transformed(tensor: object) -> bool:
    """Whether the value is a tensor under a ``torch.func`` transform."""
    return isinstance(tensor, Tensor) and bool(compat.is_functorch_wrapped(tensor))


def all_stored(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the strided tensors that hold the elements of several tensors, in order."""
    return [part for tensor in tensors for part in stored(tensor)]
