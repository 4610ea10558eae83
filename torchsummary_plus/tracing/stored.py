"""Any tensor as the plain ones that hold its elements: those under a transform, of a sparse or of a nested one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .fakes import Fake

_COMPRESSED = {
    torch.sparse_csr: ("values", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("values", "crow_indices", "col_indices"),
    torch.sparse_csc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_coo: ("_values", "_indices"),
}
_NESTED = ("values", "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")


def stored(tensor: Tensor) -> list[Tensor]:
    """The strided tensors whose storages a tensor lies in: itself, or what it is made of; none where torch hides them.

    >>> [tuple(part.shape) for part in stored(torch.eye(3).to_sparse())]
    [(3,), (2, 3)]
    """
    if type(tensor) is Fake:
        return [tensor]
    if is_transformed(tensor):
        return stored(torch._C._functorch.get_unwrapped(tensor))
    names = _COMPRESSED.get(tensor.layout)
    if names is None and tensor.is_nested and not hasattr(tensor, "__tensor_flatten__"):
        names = _NESTED
    if names is not None:
        with _disable_current_modes():
            return [getattr(tensor, name)() for name in names]
    if hasattr(tensor, "__tensor_flatten__"):
        return all_stored(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [tensor] if tensor.layout is torch.strided else []


def is_transformed(tensor: object) -> bool:
    """Whether a transform of ``torch.func`` is under way on a tensor."""
    return isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def all_stored(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The strided tensors that some tensors lie in, one after the other."""
    return [part for tensor in tensors for part in stored(tensor)]
