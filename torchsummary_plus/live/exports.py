"""What happens where a pass exports a tensor's memory: to torch by DLPack, to another library or process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from . import compat
from .fakes import DataDependentError, Fake

_SHARES = ("_share_filename_cpu_", "_share_fd_cpu_")
"""A storage's methods that move it to memory which other processes can read."""


@dataclass(frozen=True)
class _Export:
    """Stands for a DLPack capsule of a fake; only torch's import takes it."""

    fake: Tensor


def exporting() -> AbstractContextManager[None]:
    """Let torch import a fake by DLPack as a tensor on the same storage; refuse to share a fake with a process.

    A fake's capsule would point to address 0, from where sharing would copy too.
    """
    return compat.replaced(_STAND_INS)


def _exported(own: Any, tensor: Tensor, *args: Any, copy: bool | None = None, **kwargs: Any) -> Any:
    if not isinstance(tensor, Fake):
        return own(tensor, *args, **kwargs, **({} if copy is None else {"copy": copy}))
    return _Export(tensor.clone() if copy else tensor)


def _imported(own: Any, capsule: Any) -> Tensor:
    if isinstance(capsule, _Export):
        return capsule.fake.data
    tensor: Tensor = own(capsule)
    if tensor.numel() and not tensor.data_ptr():
        raise DataDependentError("a DLPack capsule of a fake tensor has no memory")
    return tensor


def _shared(own: Any, storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    if storage.device.type == "meta":
        raise DataDependentError("another process needs the values of a fake tensor")
    with compat.no_dispatch():  # The copy to memory that the storage takes over is no write of the step's.
        return own(storage, *args, **kwargs)


def _around(own: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        return stand_in(own, *args, **kwargs)

    return call


_STAND_INS = {
    place: _around(getattr(*place), stand_in)
    for place, stand_in in (
        *((place, _imported if place[1] == "_from_dlpack" else _exported) for place in compat.dlpack_places),
        *(((torch.UntypedStorage, name), _shared) for name in _SHARES),
    )
    if hasattr(*place)
}
