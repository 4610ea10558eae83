"""Real copies of tensors that share storages as the originals do."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from . import compat
from .fakes import is_plain
from .structures import SPARSE, inner_tensors


class Copies:
    """Real copies of tensors on a device; each storage is copied once, so that views keep sharing it.

    Tensors on other devices stay there, unless ``moves`` is set.
    """

    def __init__(self, device: torch.device, moves: bool = False) -> None:
        self.device = device
        self.moves = moves
        self._copied: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of a plain tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._copied:
            with compat.no_function():
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                self._copied[storage._cdata] = storage, whole.to(self.device, copy=True).untyped_storage()
        _, copied = self._copied[storage._cdata]
        copy = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return copy.set_(copied, tensor.storage_offset(), tensor.shape, tensor.stride())

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's storage has been copied."""
        return tensor.untyped_storage()._cdata in self._copied

    def alike(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of any tensor, a parameter for a parameter. Copies on other devices share no storage."""
        to_here = tensor.device == self.device or (self.moves and tensor.device.type != "meta")
        if to_here and is_plain(tensor):
            copy = self.of(tensor.detach())
        elif to_here and tensor.layout in SPARSE:
            copy = self._of_sparse(tensor.detach())
        else:
            copy = tensor.detach().to(self.device if to_here else tensor.device, copy=True)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(copy, tensor.requires_grad)
        return copy.requires_grad_(tensor.requires_grad)

    def _of_sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of a sparse tensor, part by part: coalescing leaves parts in larger storages."""
        values, *indices = [self.of(part) for part in inner_tensors(tensor)]
        make: Any = partial(torch.sparse_compressed_tensor, layout=tensor.layout)
        if tensor.layout is torch.sparse_coo:
            make = partial(torch.sparse_coo_tensor, is_coalesced=tensor.is_coalesced())
        copy: torch.Tensor = make(*indices, values, tensor.shape, check_invariants=False)
        return copy

    def settle(self) -> None:
        """Drop the references to the copies."""
        self._copied.clear()
