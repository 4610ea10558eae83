"""Storages without bytes that stand for real ones in a pass: one for each, whatever views of it become fakes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from typing import Any

import torch

from . import compat
from .fakes import META, Fake, check_fakeable, wrap

Told = Callable[[torch.UntypedStorage, torch.UntypedStorage, torch.device], None]
"""What to call with a real storage, the one that now stands for it, and the device where that is."""


class Twins:
    """Pairs of a real storage and the one on meta that stands for it in a pass.

    A twin lives at least as long as its real storage, so that a tensor that a program keeps is live in the books; and
    after that as long as a fake holds it. Tensors and their views therefore share one twin, in any order.
    """

    def __init__(self) -> None:
        self.told: Told | None = None
        self._pairs: dict[int, tuple[weakref.ref[torch.UntypedStorage], Any]] = {}
        self._real: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __bool__(self) -> bool:
        """Whether any fake stands for a real tensor."""
        return bool(self._pairs)

    def fake(self, tensor: torch.Tensor, device: torch.device, requires_grad: bool = False) -> Fake:
        """A fake of a real tensor as it lies at present; raises :class:`UnfakeableError`."""
        check_fakeable(tensor)
        guard = compat.no_dispatch()
        storage = self.storage(tensor.untyped_storage(), device)
        meta = torch.empty(0, dtype=tensor.dtype, device=META)
        meta.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        fake = wrap(meta, device, requires_grad)
        del guard
        return fake

    def of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The storage that stands for this one; itself where there is none, as for a fake's."""
        if storage.device.type == "meta":
            return storage
        return self._known(storage) or storage

    def real_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """The real storage that this one stands for; None where it is gone, or there was none."""
        found = self._real.get(storage._cdata)
        return None if found is None else found()

    def let_go(self, kept: Container[int]) -> None:
        """From now on twins live as their fakes do, which are in the places of the real tensors; but for some storages.

        Those that are ``kept``, by their addresses, are of real tensors that are in use.
        """
        for key, (real, held) in self._pairs.items():
            if key not in kept:
                self._pairs[key] = real, weakref.ref(_held(held))

    def _make(self, storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
        twin = torch.UntypedStorage(storage.nbytes(), device=META)
        key, mirrored = storage._cdata, twin._cdata
        self._pairs[key] = weakref.ref(storage, lambda _: self._pairs.pop(key, None) and None), twin
        self._real[mirrored] = weakref.ref(storage, lambda _: self._real.pop(mirrored, None) and None)
        if self.told is not None:
            self.told(storage, twin, device)
        return twin

    def storage(self, storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
        """The storage that stands for this one, made where there is none yet; itself for a fake's."""
        if storage.device.type == "meta":
            return storage
        return self._known(storage) or self._make(storage, device)

    def _known(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        real, held = self._pairs.get(storage._cdata, (None, None))
        return None if real is None or real() is None else _held(held)


def _held(held: Any) -> Any:
    return held() if isinstance(held, weakref.ref) else held
