"""The listener that knows which call made each tensor, by the tensor's storage and version."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from ..data.records import GIVEN, RETURNED, Call, Flow, Link, TensorSpec, tensors
from ..live.fakes import Fake
from ..live.structures import all_tensors, describe_tensor
from .kernels import written
from .passes import Frame, Listener


class _Origin(NamedTuple):
    """The step that made a tensor, and which of its results it is."""

    step: int
    slot: int


class _Read(NamedTuple):
    origin: _Origin
    step: int
    tensor: TensorSpec


class Provenance(Listener):
    """Notes the step that made each tensor: an operator, or a call that returns what it was given.

    Steps are numbered in the order they run. A storage has the step that wrote to it last, a tensor the step that made
    it; the later of the two is where its elements come from. ``state`` has the ids of parameters and buffers: what a
    module writes to its own is not seen as data that its next call reads.
    """

    def __init__(self, given: Sequence[torch.Tensor], state: Collection[int]) -> None:
        self.state = state
        self.owners: list[Frame | None] = []
        self.reads: list[_Read] = []
        self.began: dict[int, int] = {}
        self.made: dict[int, tuple[weakref.ref[torch.Tensor], _Origin]] = {}
        self.wrote: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Origin]] = {}
        self.returned: list[tuple[_Origin, TensorSpec]] = []
        for tensor in given:
            self._make(tensor, _Origin(self._step(None), 0), writes=True)
        self.given = len(self.owners)

    def begin(self, frame: Frame) -> None:
        self.began[frame.index] = len(self.owners)

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if frame is None:
            return
        outs = list(_flat((out,)))
        is_mutable = getattr(func, "_schema", None) is not None and func._schema.is_mutable
        changed = written(func, args, kwargs) if is_mutable else []
        if not outs and not changed:
            return
        given = list(_flat((*args, *kwargs.values())))
        read = [] if _reads_no_values(func) else self._origins(frame, given)
        step = self._step(frame)
        self.reads += [_Read(origin, step, spec) for origin, spec in read]
        storages = set() if is_mutable else {_place(tensor) for tensor in given}
        for tensor in changed:
            self._make(tensor, _Origin(step, 0), writes=True)
        for slot, tensor in enumerate(outs):
            self._make(tensor, _Origin(step, slot), writes=not is_mutable and _place(tensor) not in storages)

    def hand_over(self, frame: Frame, output: Any) -> Any:
        """What the caller gets: a tensor that the module returns as it was given has a new name, as a view of itself.

        So who reads ``nn.Identity()(x)`` is told from who reads ``x``. Its own tensors keep theirs.
        """
        if type(output) is tuple:
            return tuple([self.hand_over(frame, item) for item in output])
        if type(output) not in (Fake, torch.Tensor) or output.is_nested or output.layout is not torch.strided:
            return output
        origin = self._origin(frame, output)
        if origin is None or origin.step >= self.began[frame.index]:
            return output
        return torch.ops.aten.alias.default(output)

    def end(self, frame: Frame, output: Any) -> None:
        if frame.outer is None:
            found = [(self._origin(frame, tensor), tensor) for tensor in all_tensors(output)]
            self.returned = [
                (origin, spec) for origin, tensor in found if origin for spec in tensors(describe_tensor(tensor))
            ]

    def _step(self, frame: Frame | None) -> int:
        self.owners.append(frame)
        return len(self.owners) - 1

    def _make(self, tensor: torch.Tensor, origin: _Origin, writes: bool) -> None:
        self.made[id(tensor)] = (weakref.ref(tensor), origin)
        place = _place(tensor) if writes else None
        if place is not None:
            self.wrote[place] = (weakref.ref(tensor.untyped_storage()), origin)

    def _origin(self, frame: Frame, tensor: torch.Tensor) -> _Origin | None:
        """Where a tensor's elements come from; None for a parameter or a constant."""
        made, origin = self.made.get(id(tensor), (None, None))
        if made is None or made() is not tensor:
            origin = None
        last = self._last_write(tensor)
        if last is not None and (origin is None or last.step > origin.step):
            origin = last
        if origin is not None and id(tensor) in self.state and _module(frame) == _module(self.owners[origin.step]):
            return None
        return origin

    def _last_write(self, tensor: torch.Tensor) -> _Origin | None:
        """The last step that wrote to a tensor's storage."""
        place = _place(tensor)
        storage, last = self.wrote.get(place, (None, None)) if place is not None else (None, None)
        return last if storage is not None and storage() is not None else None

    def _origins(self, frame: Frame, given: Sequence[torch.Tensor]) -> list[tuple[_Origin, TensorSpec]]:
        found: dict[tuple[_Origin, TensorSpec], None] = {}
        for tensor in given:
            origin = self._origin(frame, tensor)
            if origin is not None:
                found.update(dict.fromkeys((origin, spec) for spec in tensors(describe_tensor(tensor))))
        return list(found)

    def flow(self, calls: Sequence[Call], place: Mapping[int, int]) -> Flow:
        """Return the flow between ``calls``; ``place`` has the call of each frame, by the frame's index."""
        ends = [(origin, len(self.owners), spec) for origin, spec in self.returned]
        reads = [*self.reads, *(_Read(*one) for one in ends)]
        owners = [GIVEN if frame is None else place.get(frame.index, 0) for frame in self.owners] + [RETURNED]
        return _merged(owners, reads, {call.parent for call in calls if call.parent is not None})


@cache
def _reads_no_values(func: Any) -> bool:
    """Whether an operator takes a tensor for its shape, dtype and device alone: ``zeros_like``, ``new_full``."""
    name = getattr(func, "_schema", None) and func._schema.name.removeprefix("aten::")
    return bool(name) and (name.startswith("new_") or name.endswith("_like")) and "sparse" not in name


def _module(frame: Frame | None) -> int | None:
    while frame is not None and frame.module is None:
        frame = frame.outer
    return None if frame is None else frame.module


def _flat(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an operator's arguments or results."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)


def _place(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's storage; None if it has none of its own."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _merged(owners: Sequence[int], reads: Sequence[_Read], outer: Collection[int]) -> Flow:
    """Return the flow with one step for each call that has none inside.

    Of the steps between the calls inside a call, those that lead nowhere are left out, and those that lead to one
    other step of the same call alone are merged with it.
    """
    step_of = _one_step_a_call(owners, outer)
    targets: dict[int, set[int]] = defaultdict(set)
    for read in reads:
        targets[step_of[read.origin.step]].add(step_of[read.step])
    for step in range(len(owners) - 1, -1, -1):
        if step_of[step] != step or owners[step] not in outer:
            continue
        after = {step_of[one] for one in targets[step]} - {step, -1}
        if not after:
            step_of[step] = -1
        elif len(after) == 1 and owners[(only := next(iter(after)))] == owners[step]:
            step_of[step] = only
    kept = sorted({step for step in step_of if step >= 0})
    number = {step: index for index, step in enumerate(kept)}
    links: dict[tuple[_Origin, int, TensorSpec], Link] = {}
    for read in reads:
        source, target = step_of[read.origin.step], step_of[read.step]
        if source >= 0 and target >= 0 and source != target:
            key = (read.origin, target, read.tensor)
            links.setdefault(key, Link(number[source], number[target], read.tensor))
    return Flow(tuple(owners[step] for step in kept), tuple(links.values()))


def _one_step_a_call(owners: Sequence[int], outer: Collection[int]) -> list[int]:
    """Return the step that each one counts as: for a call without calls inside, its first."""
    first: dict[int, int] = {}
    return [step if owner < 0 or owner in outer else first.setdefault(owner, step) for step, owner in enumerate(owners)]
