"""The live storages, updated from call to call without a walk over all of Python's objects.

One walk finds the tensors at the start. A tensor that appears later is young: it is in the garbage collector's youngest
generation, or was when the last collection began, which a callback records. Storages report their release. Attributes
that may change without notice are reread: a storage's size, and the data pointers of tensors that share one.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, compress, repeat
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from ..data.collection import no_collection
from ..data.tracking_records import Holding
from ..live import compat
from ..live.structures import SPARSE, dtype_name, inner_tensors

T = TypeVar("T")

PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)


class _Ref(weakref.ref[T]):
    """A weak reference with its index in a registry (-1: removed).

    A storage's also has its holding, and its tensor while only one is known.
    """

    __slots__ = ("alone", "has_tensor", "holding", "place")
    place: int
    holding: Holding
    alone: _Ref[torch.Tensor] | None
    has_tensor: bool


class _Registry(Generic[T]):
    """Live objects, each with the number last read from it."""

    def __init__(self, read: Callable[[T], int]) -> None:
        self.read = read
        self.refs: list[_Ref[T]] = []
        self.figures: list[int] = []
        self.dead: deque[_Ref[T]] = deque()
        self._by_id: dict[int, _Ref[T]] = {}
        self._ids: list[int] = []

    def find(self, value: T) -> _Ref[T] | None:
        """Return the reference to a registered object, or None."""
        ref = self._by_id.get(id(value))
        return ref if ref is not None and ref() is value else None

    def add(self, value: T) -> _Ref[T]:
        ref = _Ref(value, self.dead.append)
        ref.place = len(self.refs)
        self.refs.append(ref)
        self.figures.append(self.read(value))
        self._ids.append(id(value))
        self._by_id[id(value)] = ref
        return ref

    def remove_dead(self) -> list[_Ref[T]]:
        """Remove the objects that have died and return their references."""
        removed = []
        while self.dead:
            ref = self.dead.popleft()
            if ref.place >= 0:
                self.remove(ref)
                removed.append(ref)
        return removed

    def remove(self, ref: _Ref[T]) -> None:
        """Remove one object; the last one takes its place."""
        place, last = ref.place, len(self.refs) - 1
        if self._by_id.get(self._ids[place]) is ref:
            del self._by_id[self._ids[place]]
        _pull(self.refs, place)
        _pull(self.figures, place)
        _pull(self._ids, place)
        if place != last:
            self.refs[place].place = place
        ref.place = -1

    def changed(self) -> list[tuple[_Ref[T], T]]:
        """Return the objects whose numbers changed; call it after removing the dead."""
        living = [ref() for ref in self.refs]
        try:
            now = list(map(self.read, living))  # type: ignore[arg-type]
        except TypeError:  # Another thread has freed one since.
            now = [before if value is None else self.read(value) for value, before in zip(living, self.figures)]
        if now == self.figures:
            return []
        before, self.figures = self.figures, now
        return [(self.refs[i], value) for i, value in enumerate(living) if value is not None and now[i] != before[i]]


def _pull(column: list[Any], place: int) -> None:
    """Fill an index with the column's last item."""
    column[place] = column[-1]
    column.pop()


HAS_MIDDLE_GENERATION = sys.version_info < (3, 14)
"""Whether survivors of the youngest generation move to a generation of their own."""


class _Young:
    """The tensors, modules and optimizers that a collection is about to move to an older generation.

    Another thread may create some between the search and the collection. Survivors of the youngest generation's
    collection are therefore searched when it ends; after a collection of older generations ``missed`` requests a walk
    over all objects.
    """

    def __init__(self) -> None:
        self.seen: deque[weakref.ref[Any]] = deque()
        self.missed = False
        self._has_threads = False

    def around_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Callback of the garbage collector, before and after each collection."""
        if phase == "start":
            self._has_threads = len(sys._current_frames()) > 1
            self._look(0)
        elif self._has_threads and HAS_MIDDLE_GENERATION and info["generation"] == 0:
            self._look(1)
        elif self._has_threads:
            self.missed = True

    def _look(self, generation: int) -> None:
        self.seen.extend(map(_Ref, watched_objects(generation)))  # Plain references may be shared, and not be new.

    def take(self) -> list[Any]:
        """Return those still alive, and forget them."""
        if self.missed:
            self.missed = False
            return watched_objects()
        return [value for value in (self.seen.popleft()() for _ in range(len(self.seen))) if value is not None]


class Population:
    """All tensors that Python knows and their storages, held by weak reference.

    ``begin`` registers existing objects, ``update`` returns the storages that appeared and disappeared since; ``end``
    removes the collector's callback.
    """

    def __init__(self) -> None:
        self.owners = Owners()
        self._lock = threading.RLock()
        self._alone: _Registry[torch.Tensor] = _Registry(id)
        self._shared: _Registry[torch.Tensor] = _Registry(torch.Tensor.data_ptr)
        self._unusual: _Registry[torch.Tensor] = _Registry(id)
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        self._storages: _Registry[torch.UntypedStorage] = _Registry(torch.UntypedStorage.nbytes)
        self._young = _Young()
        self._came: list[Holding] = []
        self._went: list[Holding] = []
        self._totals: dict[str, tuple[int, int]] = {}
        self._close: Callable[[], Any] = lambda: None

    def begin(self) -> None:
        """Walk over all objects once, and watch young ones from now on."""
        gc.callbacks.append(self._young.around_collection)
        self._close = weakref.finalize(self, gc.callbacks.remove, self._young.around_collection)
        with self._lock:
            self._add(watched_objects())

    def end(self) -> None:
        """Stop watching."""
        self._close()

    def live(self, device: str) -> tuple[int, int]:
        """Return the number of non-empty storages on a device and their bytes, as of the last ``update``."""
        return self._totals.get(device, (0, 0))

    def update(self) -> tuple[list[Holding], list[Holding]]:
        """Return the storages that appeared and disappeared since the last call; a resized one counts in both."""
        with self._lock:
            self._remove_dead()
            young = watched_objects(0)  # First, so that what a collection moves away from now on is included.
            self._add([*self._young.take(), *young])
            for _, tensor in self._shared.changed():
                self._record(tensor)
            for unusual in [ref() for ref in self._unusual.refs]:
                if unusual is not None:
                    self._record_parts(unusual)
            for ref, storage in self._storages.changed():
                self._resize(ref, storage.nbytes())
            self._remove_dead()
            appeared, gone, self._came, self._went = self._came, self._went, [], []
            self._count(appeared, 1)
            self._count(gone, -1)
            return appeared, gone

    def _add(self, objects: Iterable[Any]) -> None:
        """Register tensors, modules and optimizers; modules, optimizers and leaves first, since they name tensors."""
        tensors = []
        for value in objects:
            if torch.Tensor in type(value).__mro__:
                tensors.append(value)
            else:
                self.owners.add(value)
        for tensor in tensors:
            if type(tensor) in compat.PLAIN and tensor.requires_grad and tensor.is_leaf:
                self._add_tensor(tensor)
        self._add_gradients()
        for tensor in tensors:
            self._add_tensor(tensor)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        if type(tensor) not in compat.PLAIN or tensor.layout is not torch.strided or tensor.is_quantized:
            if self._unusual.find(tensor) is None:
                self._unusual.add(tensor)
                self._record_parts(tensor)
        elif not self._knows(tensor):
            storage = self._record(tensor)
            if storage is not None:
                self._follow(tensor, storage)
                if tensor.requires_grad and tensor.is_leaf:
                    self._leaves.append(weakref.ref(tensor))

    def _knows(self, tensor: torch.Tensor) -> bool:
        return self._alone.find(tensor) is not None or self._shared.find(tensor) is not None

    def _follow(self, tensor: torch.Tensor, storage: _Ref[torch.UntypedStorage]) -> None:
        """Watch for a tensor's move to another storage (``tensor.data = ...``).

        If the tensor was alone on its storage, the storage dies. A tensor that shares it, and a parameter, which a
        graph or an optimizer may share, has to be read again.
        """
        if not storage.has_tensor and not isinstance(tensor, nn.Parameter):
            storage.alone = self._alone.add(tensor)
        else:
            other = None if storage.alone is None else storage.alone()
            if storage.alone is not None and other is not None:
                self._alone.remove(storage.alone)
                self._shared.add(other)
                self._record(other)  # It may have moved to another storage since.
            storage.alone = None
            self._shared.add(tensor)
        storage.has_tensor = True

    def _add_gradients(self) -> None:
        """Register the gradients of leaves, which only their leaves know until they are accessed."""
        leaves = [ref() for ref in self._leaves]
        if any(leaf is None for leaf in leaves):
            self._leaves = [ref for ref, leaf in zip(self._leaves, leaves) if leaf is not None]
        for leaf in leaves:
            grad = None if leaf is None else leaf.grad
            if leaf is not None and grad is not None and not self._knows(grad):
                self.owners.give_gradient(leaf, grad)
                self._add_tensor(grad)

    def _record_parts(self, tensor: torch.Tensor) -> None:
        """Register the parts of an unusual tensor, if it has memory of its own."""
        for part in _parts(tensor):
            self._record(part, type(tensor))

    def _record(self, tensor: torch.Tensor, kind: type | None = None) -> _Ref[torch.UntypedStorage] | None:
        """Register a tensor's storage; None if it has none."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # A wrapper: its inner tensors are registered on their own.
            return None
        if storage.device.type == "meta":
            return None
        ref = self._storages.find(storage)
        if ref is None:
            kind = kind or type(tensor)
            ref = self._storages.add(storage)
            ref.alone, ref.has_tensor = None, False
            ref.holding = Holding(
                shape=tuple(tensor.shape),
                dtype=dtype_name(tensor.dtype),
                class_name=f"{kind.__module__}.{kind.__qualname__}",
                nbytes=storage.nbytes(),
                device=str(storage.device),
                owner=self.owners.name(tensor),
            )
            self._came.append(ref.holding)
        return ref

    def _resize(self, ref: _Ref[torch.UntypedStorage], nbytes: int) -> None:
        self._went.append(ref.holding)
        ref.holding = replace(ref.holding, nbytes=nbytes)
        self._came.append(ref.holding)

    def _count(self, holdings: Iterable[Holding], sign: int) -> None:
        for holding in holdings:
            storages, nbytes = self._totals.get(holding.device, (0, 0))
            self._totals[holding.device] = storages + sign * bool(holding.nbytes), nbytes + sign * holding.nbytes

    def _remove_dead(self) -> None:
        for registry in (self._alone, self._shared, self._unusual):
            registry.remove_dead()
        for ref in self._storages.remove_dead():
            self._went.append(ref.holding)
            moved = None if ref.alone is None else ref.alone()
            if ref.alone is not None and moved is not None:
                self._alone.remove(ref.alone)
                self._add_tensor(moved)


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that hold an unusual tensor's memory: a sparse one's values and indices, or scales."""
    with compat.no_subclass_function():
        if tensor.layout in SPARSE:
            yield from inner_tensors(tensor)
        elif tensor.layout is torch.strided and not compat.is_wrapper_subclass(tensor):
            yield tensor
            if tensor.is_quantized and tensor.qscheme() in PER_CHANNEL:
                yield from (tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points())


class Owners:
    """Names of tensors. Modules and optimizers are held by weak reference and reread when new ones appear."""

    def __init__(self) -> None:
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._read = (-1, -1)

    def add(self, owner: Any) -> None:
        """Register a module or optimizer."""
        (self._modules if isinstance(owner, nn.Module) else self._optimizers).add(owner)

    def name(self, tensor: torch.Tensor) -> str:
        """Return a tensor's name in its module or optimizer; "" without an owner."""
        known = (len(self._modules), sum(len(optimizer.state) for optimizer in self._optimizers))
        if known != self._read or (isinstance(tensor, nn.Parameter) and id(tensor) not in self._names):
            self._read = known
            for owned, owned_name in self._all():
                self._give(owned, owned_name)
        ref, name = self._names.get(id(tensor), (None, ""))
        return name if ref is not None and ref() is tensor else ""

    def give_gradient(self, leaf: torch.Tensor, grad: torch.Tensor) -> None:
        """Name a gradient after its leaf."""
        self._give(grad, f"gradient of {self.name(leaf) or 'a leaf'}")

    def _give(self, tensor: torch.Tensor, name: str) -> None:
        names, key = self._names, id(tensor)
        self._names[key] = weakref.ref(tensor, lambda ref: names.pop(key) if names[key][0] is ref else None), name

    def _all(self) -> Iterator[tuple[torch.Tensor, str]]:
        inner = {id(child) for module in self._modules for child in module._modules.values()}
        for root in [module for module in self._modules if id(module) not in inner]:
            for named in (root.named_parameters(), root.named_buffers()):
                yield from ((tensor, f"{type(root).__name__}.{path}") for path, tensor in named)
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        yield value, f"{type(optimizer).__name__} {key} of {self._parameter_name(parameter)}"

    def _parameter_name(self, parameter: Any) -> str:
        ref, name = self._names.get(id(parameter), (None, ""))
        return name if ref is not None and ref() is parameter else "a parameter"


WATCHED = frozenset((torch.Tensor, nn.Module, torch.optim.Optimizer))


def watched_objects(generation: int | None = None) -> list[Any]:
    """Return the tensors, modules and optimizers of a generation; None for all generations."""
    return objects_of(WATCHED, generation)


def objects_of(classes: frozenset[type], generation: int | None = None) -> list[Any]:
    """Return the instances of some classes and their subclasses in a generation; None for all generations.

    No other thread may run while a list refers to all objects: a tuple that it is building could not grow ("bad
    argument to internal function"). Therefore one call in C requests the list, reads it in two places side by side and
    drops it, without a collection: at the end, both places have asked ``lists`` for another one.
    """
    with no_collection():
        chosen = _derived(classes) if generation is None else _derived_in(classes, generation)
        lists = _twice(generation)
        objects = chain.from_iterable(chain(lists, ((None,),)))
        return list(compress(objects, map(chosen.__contains__, map(type, chain.from_iterable(lists)))))


def _derived(classes: frozenset[type]) -> set[type]:
    """Return classes and all their subclasses."""
    known = set(classes)
    waiting: list[type] = list(classes)
    while waiting:
        derived: set[type] = set(type.__subclasses__(waiting.pop())) - known
        known |= derived
        waiting.extend(derived)
    return known


def _derived_in(classes: frozenset[type], generation: int) -> set[type]:
    """Return the subclasses with instances in a generation; libraries define thousands, but few objects are young."""
    kinds = set(map(type, chain.from_iterable(map(gc.get_objects, (generation,)))))
    return {kind for kind in kinds if not classes.isdisjoint(kind.__mro__)}


def _twice(generation: int | None) -> Iterator[list[Any]]:
    """Yield a list of all objects twice; it is requested when first used."""
    return chain.from_iterable(map(repeat, map(gc.get_objects, (generation,)), (2,)))
