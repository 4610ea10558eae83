"""What a real step writes to that nothing of it was known to reach, written back; and how much it holds at most."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..live.stored import all_stored
from ..trace.kernels import tensors_of, written
from ..trace.passes import Frame, Listener

LARGEST = 1 << 30
"""Bytes that a step may hold, beside what was there before it, for it to be run for real."""


class TooLargeError(Exception):
    """A step takes more memory than one that is run for real may."""

    def __init__(self) -> None:
        super().__init__(f"it takes more than {LARGEST:,} bytes")


class Untouched(Listener):
    """Keeps the contents of storages that were there before a pass, from before it first writes to them.

    They are copied past torch, so that no profile shows it. What the pass itself makes is no more than :data:`LARGEST`.
    """

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, bytes]] = {}
        self.nbytes = 0
        self._born: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def note_born(self, tensors: Iterable[Tensor]) -> None:
        """Remember tensors that were made for the pass, whose contents nobody needs."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, nbytes = storage._cdata, 0 if storage.device.type == "meta" else storage.nbytes()
            if key not in self._born and key not in self.kept:
                self._born[key] = weakref.ref(storage, partial(self._gone, key, nbytes))
                self.nbytes += nbytes
        if self.nbytes > LARGEST:
            raise TooLargeError

    def _gone(self, key: int, nbytes: int, _: object) -> None:
        del self._born[key]
        self.nbytes -= nbytes

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable:
            self._keep(all_stored(written(func, args, kwargs)))

    def _keep(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._born and storage._cdata not in self.kept and tensor.device.type == "cpu":
                content = ctypes.string_at(storage.data_ptr(), storage.nbytes())
                self.kept[storage._cdata] = tensor.detach(), content

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = {tensor.untyped_storage()._cdata for tensor in all_stored(tensors_of((*args, *kwargs.values())))}
        made = all_stored(tensors_of(out))
        self.note_born(tensor for tensor in made if tensor.untyped_storage()._cdata not in given)

    def undo(self) -> None:
        """Write the kept contents back."""
        for tensor, content in self.kept.values():
            ctypes.memmove(tensor.untyped_storage().data_ptr(), content, len(content))
