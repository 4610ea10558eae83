"""Undo a real pass's writes to parameters, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..live import compat
from ..live.stored import stored
from .passes import Listener


class WriteJournal(Listener):
    """Saves a parameter's contents before a real pass first writes to it."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        self.by_storage: dict[int, list[torch.Tensor]] = {}
        for p in self.parameters:
            for part in stored(p):
                if part.device.type != "meta":
                    self.by_storage.setdefault(part.untyped_storage()._cdata, []).append(part)
        self.contents: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy what the operator is about to write to, once per storage."""
        schema = getattr(func, "_schema", None)
        if schema is None or not schema.is_mutable:
            return
        for value in (*args, *kwargs.values()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_nested:
                    storage = tensor.untyped_storage()._cdata
                    if storage in self.by_storage and storage not in self.contents:
                        original = self.by_storage[storage][0]
                        self.contents[storage] = (original, _bytes_of(original).clone())

    def undo(self) -> None:
        """Restore every parameter's contents."""
        with torch.no_grad():
            for original, content in self.contents.values():
                _bytes_of(original).copy_(content)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's whole storage as bytes."""
    with compat.no_function():
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return whole.set_(tensor.untyped_storage())
