"""Distributed tensors on CUDA in a build without CUDA: C++ asks the pass for their device, as for fakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..live.compat import swap_tensors
from . import compat


@contextmanager
def devices_asked() -> Iterator[None]:
    """Inside the block, have C++ ask the pass for every new DTensor's device.

    The autograd engine looks up the accelerator of a gradient on CUDA, and fails if there is none
    (torch/csrc/autograd/input_buffer.cpp); a pass tells it meta instead. C++ makes DTensors by ``_dtensor__new__``,
    which fixes the device (torch/csrc/autograd/python_variable.cpp), and sets ``_local_tensor`` last; at that moment
    each gets the implementation of a wrapper that asks. The local tensor is set again when it is added to in place: C++
    may then hold the DTensor by its implementation, as a parameter holds its gradient.
    """
    with ExitStack() as stack:
        stack.enter_context(_devices_of_locals())
        if compat.MADE_IN_CPP.owner is not None:
            stack.enter_context(_wrapped_once_made())
        yield


@contextmanager
def _devices_of_locals() -> Iterator[None]:
    """Have Python read a DTensor's device from its local tensor.

    Outside a pass C++ would ask DTensor, which refuses before torch 2.9 (torch/distributed/tensor/_dispatch.py).
    """
    kind: Any = DTensor
    for name in _OF_DEVICES:
        setattr(kind, name, property(partial(_of_local, name)))
    try:
        yield
    finally:
        for name in _OF_DEVICES:
            delattr(kind, name)


@contextmanager
def _wrapped_once_made() -> Iterator[None]:
    """Give each DTensor that C++ makes the implementation of a wrapper that asks."""
    kind: Any = DTensor
    slot = vars(kind)["_local_tensor"]

    def take(tensor: Any, local: Any) -> None:
        is_new = not _is_set(slot, tensor)
        slot.__set__(tensor, local)
        if is_new and local is not None and tensor.grad_fn is None:
            swap_tensors(tensor, _asking(tensor, local))

    kind._local_tensor = property(slot.__get__, take, slot.__delete__)
    try:
        yield
    finally:
        kind._local_tensor = slot


def _is_set(slot: Any, tensor: Any) -> bool:
    try:
        return slot.__get__(tensor) is not None
    except AttributeError:
        return False


_OF_DEVICES = ("device", "is_cuda", "is_cpu", "is_meta")
"""Attributes that Python code may read outside a pass, when C++ has no pass to ask."""


def _of_local(name: str, tensor: Any) -> Any:
    return getattr(tensor._local_tensor, name)


def _asking(tensor: Any, local: Any) -> Any:
    """Return a wrapper like a DTensor that asks the pass for its device."""
    make: Any = torch.Tensor._make_wrapper_subclass
    return make(
        type(tensor),
        tensor.shape,
        strides=tensor.stride(),
        storage_offset=tensor.storage_offset(),
        dtype=local.dtype,
        device=local.device,
        layout=local.layout,
        requires_grad=tensor.requires_grad,
        dispatch_device=True,
    )
