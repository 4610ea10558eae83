"""A listener that records which call produced each tensor, by the tensor's storage and version."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from ..data.records import FROM_INPUT, RETURNED, Call, Flow, Link, TensorSpec, tensors
from ..live.fakes import Fake
from ..live.structures import all_tensors, describe_tensor
from ..trace.kernels import tensors_of, written
from .forward import Frame, Listener, module_of

Origin = tuple[int, int]
"""The step that produced a tensor, and which of its results the tensor is."""

Read = tuple[Origin, int, TensorSpec]
"""A tensor's origin, the step that reads it, and the tensor as that step sees it."""


class Provenance(Listener):
    """Records the step that produced each tensor: an operator, or a call that returns its argument.

    Steps are numbered in the order they run. A tensor's elements come from the step that created it, or from the step
    that last wrote to its storage in place, whichever is later. ``state`` has the ids of parameters and buffers: what a
    module writes to its own does not count as data that its next call reads.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], state: Collection[int]) -> None:
        self.state = state
        self.places: dict[int, int | None] = {}
        """The storages of parameters and buffers that were read, by the tensor's id."""
        self.owners: list[Frame | None] = []
        self.reads: list[Read] = []
        self.began: dict[int, int] = {}
        self.producers: dict[int, tuple[weakref.ref[torch.Tensor], Origin, int | None]] = {}
        """Each tensor by id, with what produced it and its storage."""
        self.wrote: dict[int | None, tuple[weakref.ref[torch.UntypedStorage], Origin]] = {}
        """The last write to each storage, by its address."""
        self.aliases: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor]]] = {}
        """The fakes that were handed over, each with the tensor behind it, so that aliases of aliases are not
        followed."""
        self.returned: list[tuple[Origin, TensorSpec]] = []
        for tensor in inputs:
            self.owners.append(None)
            self._make(tensor, (len(self.owners) - 1, 0))

    def begin(self, frame: Frame) -> None:
        """Remember where in the pass a call begins."""
        self.began[frame.index] = len(self.owners)

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record which call wrote the operator's results, and the tensors it read."""
        if frame is None:
            return
        outs = tensors_of(out)
        changed = _changed(func, args, kwargs)
        if not outs and not changed:
            return
        step = len(self.owners)
        if not _reads_no_values(func):
            self._read(frame, step, (*args, *kwargs.values()))
        self.owners.append(frame)
        for tensor in changed:
            self._write(tensor, (step, 0))
        for slot, tensor in enumerate(outs):
            self._make(tensor, (step, slot))

    def hand_over(self, frame: Frame, output: Any) -> Any:
        """Return a module's output to its caller; a fake argument that it returns unchanged becomes a new view.

        This distinguishes readers of ``nn.Identity()(x)`` from readers of ``x``. Real tensors and the module's own are
        returned as they are.
        """
        if type(output) is tuple:
            return tuple([self.hand_over(frame, item) for item in output])
        if type(output) is not Fake or output.is_nested or not self._is_older(frame, output):
            return output
        aliased = self._aliased(output)
        step, known = len(self.owners), len(self.reads)
        renamed = torch.ops.aten.alias.default(aliased)
        del self.reads[known:]
        self._read(frame, step, (output,))
        self.aliases[id(renamed)] = weakref.ref(renamed), weakref.ref(aliased)
        return renamed

    def end(self, frame: Frame, output: Any) -> None:
        """Note what a call returns; an argument that it returns unchanged comes from this call from now on."""
        passed = [tensor for tensor in _in_sequences((output,)) if self._is_older(frame, tensor)]
        if passed:
            step = len(self.owners)
            self._read(frame, step, passed)
            self.owners.append(frame)
            for slot, tensor in enumerate(passed):
                self._make(tensor, (step, slot))
        if frame.outer is None:
            results = [(self._origin(frame, tensor), tensor) for tensor in all_tensors(output)]
            self.returned = [
                (origin, spec) for origin, tensor in results if origin for spec in tensors(describe_tensor(tensor))
            ]

    def _aliased(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor that a handed-over one is an alias of; any other tensor itself."""
        alias, base = self.aliases.get(id(tensor), (None, None))
        original = None if alias is None or base is None or alias() is not tensor else base()
        return tensor if original is None else original

    def _is_older(self, frame: Frame, tensor: torch.Tensor) -> bool:
        origin = self._origin(frame, tensor)
        return origin is not None and origin[0] < self.began[frame.index]

    def _make(self, tensor: torch.Tensor, origin: Origin) -> None:
        self.producers[id(tensor)] = (weakref.ref(tensor), origin, _place(tensor))

    def _write(self, tensor: torch.Tensor, origin: Origin) -> None:
        place = _place(tensor)
        if place is not None:
            self.wrote[place] = (weakref.ref(tensor.untyped_storage()), origin)

    def _origin(self, frame: Frame, tensor: torch.Tensor) -> Origin | None:
        """Return the step that a tensor's elements come from; None for a parameter or a constant."""
        producer, origin, place = self.producers.get(id(tensor), _NOTHING)
        if producer is None or producer() is not tensor:
            origin, place = None, self._place_of(tensor)
        storage, last = self.wrote.get(place, (None, None))
        if last is not None and (origin is None or last > origin) and storage is not None and storage() is not None:
            origin = last
        if origin is not None and id(tensor) in self.state and module_of(frame) == module_of(self.owners[origin[0]]):
            return None
        return origin

    def _place_of(self, tensor: torch.Tensor) -> int | None:
        """Return the storage of a tensor that no step produced; for parameters and buffers it is looked up once."""
        if id(tensor) not in self.state:
            return _place(tensor)
        if id(tensor) not in self.places:
            self.places[id(tensor)] = _place(tensor)
        return self.places[id(tensor)]

    def _read(self, frame: Frame, step: int, values: Any) -> None:
        for tensor in tensors_of(values):
            origin = self._origin(frame, tensor)
            if origin is not None:
                self.reads += [(origin, step, spec) for spec in tensors(describe_tensor(tensor))]

    def flow(self, calls: Sequence[Call], place: Mapping[int, int]) -> Flow:
        """Return the flow between ``calls``; ``place`` has the call of each frame, by the frame's index."""
        reads = [*self.reads, *((origin, len(self.owners), spec) for origin, spec in self.returned)]
        owners = [FROM_INPUT if frame is None else place[frame.index] for frame in self.owners] + [RETURNED]
        return _merged(owners, reads, {call.parent for call in calls if call.parent is not None})


_NOTHING = (None, None, None)


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator writes to in place."""
    schema = getattr(func, "_schema", None)
    return written(func, args, kwargs) if schema is not None and schema.is_mutable else []


@cache
def _reads_no_values(func: Any) -> bool:
    """Whether an operator uses only a tensor's shape, dtype and device: ``zeros_like``, ``new_full``."""
    schema = getattr(func, "_schema", None)
    name = "" if schema is None else str(schema.name)
    return name.startswith("aten::new_") or (name.startswith("aten::") and name.endswith("_like"))


def _in_sequences(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists and tuples, but not those in dicts."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += _in_sequences(value)
    return tensors


def _place(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage; None if it has none of its own."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _merged(owners: Sequence[int], reads: Sequence[Read], outer: Collection[int]) -> Flow:
    """Return the flow with one step for each call that has no nested calls.

    Of the steps between a call's nested calls, those that lead nowhere are left out, and those that lead only to one
    other step of the same call are merged with it.
    """
    step_of = _one_step_a_call(owners, outer)
    targets: dict[int, set[int]] = defaultdict(set)
    for (source, _), target, _ in reads:
        targets[step_of[source]].add(step_of[target])
    for step in range(len(owners) - 1, -1, -1):
        if step_of[step] != step or owners[step] not in outer:
            continue
        after = {step_of[target] for target in targets[step]} - {step, -1}
        if not after:
            step_of[step] = -1
        elif len(after) == 1 and owners[(only := next(iter(after)))] == owners[step]:
            step_of[step] = only
    steps = sorted({step for step in step_of if step >= 0})
    number = {step: index for index, step in enumerate(steps)}
    links: dict[Read, Link] = {}
    results: defaultdict[int, dict[Origin, int]] = defaultdict(dict)
    for origin, step, tensor in reads:
        source, target = step_of[origin[0]], step_of[step]
        if source >= 0 and target >= 0 and source != target:
            result = results[source].setdefault(origin, len(results[source]))
            links.setdefault((origin, target, tensor), Link(number[source], number[target], tensor, result))
    return Flow(tuple(owners[step] for step in steps), tuple(links.values()))


def _one_step_a_call(owners: Sequence[int], outer: Collection[int]) -> list[int]:
    """Return the step that each one counts as: for a call without nested calls, its first."""
    first: dict[int, int] = {}
    return [step if owner < 0 or owner in outer else first.setdefault(owner, step) for step, owner in enumerate(owners)]
