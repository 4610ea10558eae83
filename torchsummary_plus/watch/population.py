"""The live storages, updated from call to call without a walk over all of Python's objects.

One walk finds the tensors at the start. A tensor that appears later is young, unless the garbage collector has made it
old since: after a collection that may have, the next update walks over all objects again. Storages and gradients of
known tensors are reread at each update, since they may change without notice.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, compress, repeat
from typing import Any

import torch
from torch import nn

from ..live import compat
from ..live.isolation import no_collection
from ..live.structures import SPARSE, dtype_name, inner_tensors

PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)

WATCHED = frozenset((torch.Tensor, nn.Module, torch.optim.Optimizer))

YOUNG = (0, 1) if sys.version_info < (3, 14) else (0,)
"""The collector's generations of young objects: what survives a collection moves to the next one, and then is old."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A storage, described by the first tensor on it: shape, dtype, class, the storage's bytes, and its owner."""

    shape: tuple[int, ...]
    dtype: str
    class_name: str
    nbytes: int
    device: str
    owner: str = ""


class Population:
    """All tensors that Python knows and their storages, held by weak reference."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tensors: dict[int, weakref.ref[torch.Tensor]] = {}
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], Holding]] = {}
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._numbers = (0, 0)
        self.changes: tuple[list[Holding], list[Holding]] = [], []
        """The storages that have appeared and disappeared; a resized one counts in both."""
        self._collections: list[int] | None = None
        """Collections so far that make objects old, as of the last update."""

    def live(self, device: str) -> tuple[int, int]:
        """Return the number of non-empty storages on a device and their bytes, as of the last ``update``."""
        holdings = (holding for _, holding in self._storages.values())
        sizes = [holding.nbytes for holding in holdings if holding.nbytes and holding.device == device]
        return len(sizes), sum(sizes)

    def update(self) -> None:
        """Add to the changes what has appeared and disappeared since the last call."""
        with self._lock:
            self._find()
            for tensor in (ref() for ref in self._tensors.values()):
                if tensor is None:
                    continue
                is_plain = _is_plain(tensor)
                for part in (tensor,) if is_plain else _parts(tensor):
                    self._record(part, tensor)
                if is_plain and tensor.is_leaf and (gradient := tensor.grad) is not None:
                    for part in _parts(gradient):
                        self._record(part, gradient, tensor)
            for key, (ref, holding) in list(self._storages.items()):
                storage = ref()
                nbytes = None if storage is None else storage.nbytes()
                if nbytes == holding.nbytes:
                    continue
                self.changes[1].append(holding)
                del self._storages[key]
                if nbytes is not None:
                    self._storages[key] = ref, replace(holding, nbytes=nbytes)
                    self.changes[0].append(self._storages[key][1])

    def _find(self) -> None:
        """Register the tensors, modules and optimizers that are new, and forget dead tensors."""
        with no_collection():  # None moves objects from a generation that is still to be read to one that is not.
            collections = [generation["collections"] for generation in gc.get_stats()[YOUNG[-1] :]]
            generations = YOUNG if collections == self._collections else (None,)
            self._collections = collections
            objects = [value for generation in generations for value in watched_objects(generation)]
        tensors = []
        for value in objects:
            if torch.Tensor in type(value).__mro__:
                tensors.append(value)
            else:
                (self._modules if isinstance(value, nn.Module) else self._optimizers).add(value)
        known = {key: ref for key, ref in self._tensors.items() if ref() is not None}
        # Leaves describe the storages that others share.
        for tensor in sorted(tensors, key=lambda each: not (_is_plain(each) and each.requires_grad and each.is_leaf)):
            if id(tensor) not in known or known[id(tensor)]() is not tensor:
                known[id(tensor)] = weakref.ref(tensor)
        self._tensors = known

    def _record(self, part: torch.Tensor, whole: torch.Tensor, leaf: torch.Tensor | None = None) -> None:
        """Register the storage of a part of a tensor; ``leaf`` is that of a gradient."""
        try:
            storage = part.untyped_storage()
        except (RuntimeError, NotImplementedError):  # A wrapper: its inner tensors are registered on their own.
            return
        ref, holding = self._storages.get(id(storage), (None, None))
        if (ref is not None and ref() is storage) or storage.device.type == "meta":
            return
        if holding is not None:  # Its storage is gone, and this one has its place.
            self.changes[1].append(holding)
        holding = Holding(
            shape=tuple(part.shape),
            dtype=dtype_name(part.dtype),
            class_name=f"{type(whole).__module__}.{type(whole).__qualname__}",
            nbytes=storage.nbytes(),
            device=str(storage.device),
            owner=self._name(part) if leaf is None else f"gradient of {self._name(leaf) or 'a leaf'}",
        )
        self._storages[id(storage)] = weakref.ref(storage), holding
        self.changes[0].append(holding)

    def _name(self, tensor: torch.Tensor) -> str:
        """Return a tensor's name in its module or optimizer, all of which are reread if there are new ones; else ""."""
        numbers = len(self._modules), sum(len(optimizer.state) for optimizer in self._optimizers)
        if numbers != self._numbers or (isinstance(tensor, nn.Parameter) and id(tensor) not in self._names):
            self._numbers = numbers
            self._names = {}
            for owned, name in self._owned():
                self._names[id(owned)] = weakref.ref(owned), name
        ref, name = self._names.get(id(tensor), (None, ""))
        return name if ref is not None and ref() is tensor else ""

    def _owned(self) -> Iterator[tuple[torch.Tensor, str]]:
        """Yield the tensors of modules and optimizers, with their names."""
        inner = {id(child) for module in self._modules for child in module._modules.values()}
        for root in [module for module in self._modules if id(module) not in inner]:
            for path, tensor in chain(root.named_parameters(), root.named_buffers()):
                yield tensor, f"{type(root).__name__}.{path}"
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        _, of = self._names.get(id(parameter), (None, "a parameter"))
                        yield value, f"{type(optimizer).__name__} {key} of {of}"


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in compat.PLAIN and tensor.layout is torch.strided and not tensor.is_quantized


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that hold a tensor's memory: itself, a sparse one's values and indices, or scales."""
    if _is_plain(tensor):
        yield tensor
        return
    with compat.no_subclass_function():
        if tensor.layout in SPARSE:
            yield from inner_tensors(tensor)
        elif tensor.layout is torch.strided and not compat.is_wrapper_subclass(tensor):
            yield tensor
            if tensor.is_quantized and tensor.qscheme() in PER_CHANNEL:
                yield from (tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points())


def watched_objects(generation: int | None) -> list[Any]:
    """Return the tensors, modules and optimizers in a generation; None for all generations.

    No other thread may run while a list refers to all objects: a tuple that it is building could not grow ("bad
    argument to internal function"). Therefore one call in C requests a list, reads it and drops it: first for the
    classes, of which libraries define thousands, then twice side by side for the objects.
    """
    kinds = set(map(type, chain.from_iterable(map(gc.get_objects, (generation,)))))
    watched = {kind for kind in kinds if not WATCHED.isdisjoint(kind.__mro__)}
    twice = chain.from_iterable(map(repeat, map(gc.get_objects, (generation,)), (2,)))
    objects = chain.from_iterable(chain(twice, ((None,),)))  # At the end, both places ask for another list.
    return list(compress(objects, map(watched.__contains__, map(type, chain.from_iterable(twice)))))
