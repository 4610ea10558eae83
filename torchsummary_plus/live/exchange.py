"""Temporarily replace tensors' contents while they remain the same Python objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

from . import compat
from .fakes import is_plain
from .remaking import remade
from .structures import SPARSE, inner_tensors

Make = Callable[[torch.Tensor], torch.Tensor]
StandIns = dict[int, weakref.ref[torch.Tensor]]
"""Replacements of tensors, by the ids of the originals."""


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


class Entries(Protocol):
    """Entries of containers that hold stand-ins of tensors which nothing else holds."""

    def containers(self) -> set[int]:
        """Return the ids of the containers."""

    def empty(self, containers: Container[int]) -> None:
        """Let go of the stand-ins in some containers, by their ids."""


class Exchange:
    """Tensors exchanged with others, once each: their data, class, gradient and hooks.

    Nothing is written to an original: torch's C++ object for it, with its values, version, gradient and hooks, is set
    aside (torch.utils.swap_tensors, which refuses tensors with other C++ references; here the originals are back before
    such references are used).
    """

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor, Any, Any]] = {}
        self.entries: Entries | None = None
        """The entries with stand-ins, which are not exchanged."""

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._pairs

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that have been exchanged."""
        return (tensor for tensor, _, _, _ in self._pairs.values())

    def put(self, tensor: torch.Tensor, make: Make) -> torch.Tensor:
        """Turn a tensor into ``make(tensor)`` and return it; where that is impossible, return the new tensor."""
        if tensor in self:
            return tensor
        other = remade(tensor, lambda part: part if part in self else make(part))
        if not is_plain(tensor) or other is tensor:
            return other
        vars(other).update({**vars(tensor), **vars(other)})
        hooks, late = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
        try:
            _swap(tensor, other)
        except RuntimeError:
            return other
        _take_hooks(tensor)
        self._pairs[id(tensor)] = tensor, other, hooks, late
        return tensor

    def give_gradients(
        self, make: Make | None = None, alone: Container[int] = (), stand_ins: StandIns | None = None
    ) -> None:
        """Give exchanged tensors the gradients of their originals, as far as those are exchanged too.

        A gradient whose id is in ``alone`` is replaced by ``make(gradient)``, which is also entered in ``stand_ins``.
        """
        put_aside = {id(other): tensor for tensor, other, _, _ in self._pairs.values()}
        for tensor, other, _, _ in self._pairs.values():
            grad = other.grad if other.is_leaf else None
            if grad is None:
                continue
            if id(grad) in put_aside:
                tensor.grad = put_aside[id(grad)]
            elif make is not None and stand_ins is not None and id(grad) in alone:
                tensor.grad = new = make(grad)
                stand_ins[id(grad)] = weakref.ref(new)

    def give_hooks(self) -> None:
        """Register the originals' hooks on the exchanged tensors."""
        for tensor, _, hooks, late in self._pairs.values():
            for hook in (hooks or {}).values():
                tensor.register_hook(hook)
            for hook in (late or {}).values():
                tensor.register_post_accumulate_grad_hook(hook)

    def release(self, key: int) -> bool:
        """Free what an exchanged tensor has become, by its id; return False if there is none, or C++ refers to it."""
        if key not in self._pairs:
            return False
        tensor, *_ = self._pairs[key]
        with compat.no_dispatch(), compat.no_function():
            blank = torch.nn.Parameter(torch.empty(0, device="cpu"), False)
        _take_hooks(tensor)
        try:
            _swap(tensor, blank)
        except RuntimeError:
            return False
        return True

    def undo(self) -> None:
        """Restore every tensor."""
        while self._pairs:
            _, (tensor, other, hooks, late) = self._pairs.popitem()
            _take_hooks(tensor)
            _swap(tensor, other)
            _give_back_hooks(tensor, hooks, late)


@contextmanager
def exchanging() -> Iterator[Exchange]:
    """Yield an :class:`Exchange` and undo it on exit."""
    exchange = Exchange()
    try:
        yield exchange
    finally:
        exchange.undo()


def _take_hooks(tensor: Any) -> None:
    """Remove a tensor's hooks: its Python object still has those of the original."""
    tensor._backward_hooks = None
    tensor._post_accumulate_grad_hooks = None


def _give_back_hooks(tensor: Any, hooks: Any, late: Any) -> None:
    if hooks is not None:
        tensor._backward_hooks = hooks
    if late is not None:
        tensor._post_accumulate_grad_hooks = late


def _swap(tensor: Any, other: Any) -> None:
    """Swap two tensors; raises RuntimeError if C++ holds a weak reference to either.

    Autocast's cache and uncollected garbage may hold such references, so both are cleared before a second attempt.
    """
    try:
        compat.swap_tensors(tensor, other)
    except RuntimeError:
        torch.clear_autocast_cache()
        gc.collect()
        compat.swap_tensors(tensor, other)
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = vars(other), vars(tensor)
