"""Meta storages that stand for real ones in a pass: one per storage, shared by the fakes of all its views."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, MutableMapping, MutableSet
from typing import Any

import torch

from . import compat
from .fakes import META, Fake, check_fakeable, wrap

OnPair = Callable[[torch.UntypedStorage, torch.UntypedStorage, torch.device], None]
"""Called with a real storage, its new meta storage, and the device of the real one."""


class MetaStorages:
    """Pairs of a real storage and the meta storage that stands for it in a pass.

    A meta storage lives at least as long as its real one, so that tensors kept by the program stay live in the ledger,
    and then as long as a fake uses it. A tensor and its views share one, in whatever order they are converted.
    """

    def __init__(self) -> None:
        self.on_pair: OnPair | None = None
        self._pairs: MutableMapping[torch.UntypedStorage, Any] = weakref.WeakKeyDictionary()
        """The meta storage of each real one, or a weak reference to it."""
        self._real: MutableMapping[int, torch.UntypedStorage] = weakref.WeakValueDictionary()
        self._has_released = False
        """Whether the steps have begun, in which other meta tensors are those of fakes."""
        self._moved: MutableSet[torch.UntypedStorage] = weakref.WeakSet()

    def __bool__(self) -> bool:
        """Return whether any fake stands for a real tensor."""
        return bool(self._pairs)

    def fake(self, tensor: torch.Tensor, device: torch.device, requires_grad: bool = False) -> Fake:
        """Return a fake of a real tensor's current storage and strides; raises :class:`UnfakeableError`."""
        check_fakeable(tensor)
        with compat.no_dispatch():
            own = tensor.untyped_storage()
            is_original = not (isinstance(tensor, Fake) or self._has_released)
            storage = self.storage(own, device, is_original)
            meta = torch.empty(0, dtype=tensor.dtype, device=META)
            meta.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
            return wrap(meta, device, requires_grad)

    def moves_storage(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that moves to another kind of device may take the pair of its storage along.

        It fills the storage, and no other tensor took it before.
        """
        storage = tensor.untyped_storage()
        is_whole = tensor.nbytes == storage.nbytes() and _dense(tensor).stride() == tensor.stride()
        if not is_whole or storage in self._moved:
            return False
        self._moved.add(storage)
        return True

    def of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the meta storage of a real one; a storage without one, such as a fake's, is returned itself."""
        if storage.device.type == "meta":
            return storage
        return self._known(storage) or storage

    def real_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """Return the real storage behind a meta one; None if it has been freed or never existed."""
        return self._real.get(storage._cdata)

    def release(self, in_use: Container[int]) -> None:
        """From now on, let meta storages live only as long as their fakes, except those of storages in use.

        ``in_use`` has their addresses.
        """
        self._has_released = True
        for storage, meta in list(self._pairs.items()):
            if storage._cdata not in in_use:
                self._pairs[storage] = weakref.ref(_alive(meta))

    def _make(self, storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
        meta = torch.UntypedStorage(storage.nbytes(), device=META)
        self._pairs[storage] = meta
        self._real[meta._cdata] = storage
        if self.on_pair is not None:
            self.on_pair(storage, meta, device)
        return meta

    def storage(
        self, storage: torch.UntypedStorage, device: torch.device, is_original: bool = False
    ) -> torch.UntypedStorage:
        """Return the meta storage of a real one, creating it if needed; a fake's storage is returned itself.

        That of an ``is_original`` tensor on meta is no fake's.
        """
        if storage.device.type == "meta" and not is_original:
            return storage
        return self._known(storage) or self._make(storage, device)

    def _known(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        known: torch.UntypedStorage | None = _alive(self._pairs.get(storage))
        return known


def alone(tensor: torch.Tensor, device: torch.device) -> Fake:
    """Return a fake of a tensor's copy on another kind of device: dense, in a storage of its own."""
    check_fakeable(tensor)
    with compat.no_dispatch():
        return wrap(_dense(tensor), device, tensor.requires_grad)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the layout of a tensor's copy on another kind of device.

    Source: aten/src/ATen/native/TensorConversions.cpp, ``_to_copy``.
    """
    with compat.no_dispatch(), compat.no_function():
        return torch.empty_like(tensor, device=META, requires_grad=False)


def _alive(meta: Any) -> Any:
    return meta() if isinstance(meta, weakref.ref) else meta
