"""Restore tensors that a real step writes to unexpectedly, and limit the memory it holds."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..live.stored import all_stored
from ..table.forward import Frame, Listener
from ..trace.kernels import tensors_of, written

LARGEST = 1 << 30
"""Most bytes that a real step may hold besides what existed before it."""


class TooLargeError(Exception):
    """A step exceeds a real step's memory limit."""

    def __init__(self) -> None:
        super().__init__(f"it takes more than {LARGEST:,} bytes")


class SavedStorages(Listener):
    """Saves the contents of storages that existed before a pass, before it first writes to them.

    The copies bypass torch, so no profile shows them. The pass's own tensors may take at most :data:`LARGEST` bytes.
    """

    def __init__(self) -> None:
        self.contents: dict[int, tuple[Tensor, bytes]] = {}
        self.nbytes = 0
        self._born: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def note_born(self, tensors: Iterable[Tensor]) -> None:
        """Remember tensors created for the pass, whose contents need no saving."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, 0 if storage.device.type == "meta" else storage.nbytes()
            if key not in self._born and key not in self.contents:
                self._born[key] = weakref.ref(storage, partial(self._forget, key, nbytes))
                self.nbytes += nbytes
        if self.nbytes > LARGEST:
            raise TooLargeError

    def _forget(self, key: int, nbytes: int, _: object) -> None:
        del self._born[key]
        self.nbytes -= nbytes

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Save the contents that an operator is about to overwrite."""
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable:
            self._save(all_stored(written(func, args, kwargs)))

    def _save(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._born and storage._cdata not in self.contents and tensor.device.type == "cpu":
                content = ctypes.string_at(storage.data_ptr(), storage.nbytes())
                self.contents[storage._cdata] = tensor.detach(), content

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Remember the operator's new tensors."""
        addresses = {tensor.untyped_storage()._cdata for tensor in all_stored(tensors_of((*args, *kwargs.values())))}
        results = all_stored(tensors_of(out))
        self.note_born(tensor for tensor in results if tensor.untyped_storage()._cdata not in addresses)

    def undo(self) -> None:
        """Restore the saved contents."""
        for tensor, content in self.contents.values():
            ctypes.memmove(tensor.untyped_storage().data_ptr(), content, len(content))
