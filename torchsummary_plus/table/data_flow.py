"""A listener that records which call produced each tensor, by the tensor's storage and version."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..data.records import FROM_INPUT, RETURNED, Call, Flow, Link, TensorSpec, tensors
from ..live.fakes import Fake
from ..live.structures import all_tensors, describe_tensor
from ..trace.kernels import tensors_of, written
from .forward import Frame, Listener

Origin = tuple[int, int]
"""The step that produced a tensor, and which of its results the tensor is."""

Read = tuple[Origin, int, TensorSpec]
"""A tensor's origin, the step that reads it, and the tensor as that step sees it."""


class Provenance(Listener):
    """Records the step that produced each tensor: an operator, or a call that returns its argument.

    Steps are numbered in the order they run. A tensor's elements come from the step that created it, or from the step
    that last wrote to its storage in place, whichever is later. ``state`` are parameters and buffers: what a module
    writes to its own does not count as data that its next call reads.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], state: Iterable[torch.Tensor]) -> None:
        self.state = set(map(id, state))
        self.owners: list[Frame | None] = []
        self.reads: list[Read] = []
        self.began: dict[int, int] = {}
        self.producers: dict[int, tuple[weakref.ref[torch.Tensor], Origin]] = {}
        """Each tensor by id, with what produced it."""
        self.wrote: dict[int | None, tuple[weakref.ref[torch.UntypedStorage], Origin]] = {}
        """The last write to each storage, by its address."""
        self.last_write = -1
        """The step of the last write to any storage."""
        self.aliases: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor]]] = {}
        """The fakes that were handed over, each with the tensor behind it, so that aliases of aliases are not
        followed."""
        self.returned: list[Read] = []
        self.fresh: Any = None
        """The last output that was handed over, if the call made it."""
        for tensor in inputs:
            self.producers[id(tensor)] = weakref.ref(tensor), (len(self.owners), 0)
            self.owners.append(None)

    def begin(self, frame: Frame) -> None:
        """Remember where in the pass a call begins."""
        self.fresh = None
        self.began[frame.index] = len(self.owners)

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record which call wrote the operator's results, and the tensors it read."""
        if frame is None:
            return
        outs = tensors_of(out)
        _, writes, reads_values = _TRAITS.get(id(func)) or _traits(func)
        changed = written(func, args, kwargs) if writes else ()
        if not outs and not changed:
            return
        step = len(self.owners)
        if reads_values:
            self._read(frame, step, tensors_of((*args, *kwargs.values()) if kwargs else args), self.reads)
        self.owners.append(frame)
        for tensor in changed:
            place = _place(tensor)
            if place is not None:
                self.wrote[place] = weakref.ref(tensor.untyped_storage()), (step, 0)
                self.last_write = step
        for slot, tensor in enumerate(outs):
            self.producers[id(tensor)] = weakref.ref(tensor), (step, slot)

    def replace_output(self, frame: Frame, output: Any) -> Any:
        """Return a module's output to its caller; a fake argument that it returns unchanged becomes a new view.

        This distinguishes readers of ``nn.Identity()(x)`` from readers of ``x``. Real tensors and the module's own are
        returned as they are.
        """
        if type(output) is tuple:
            return tuple([self.replace_output(frame, item) for item in output])
        if type(output) is not Fake or output.is_nested:
            return output
        if not self._is_older(frame, output):
            self.fresh = output
            return output
        alias, base = self.aliases.get(id(output), (None, None))
        original = None if alias is None or base is None or alias() is not output else base()
        aliased = output if original is None else original
        step, known = len(self.owners), len(self.reads)
        renamed = torch.ops.aten.alias.default(aliased)
        del self.reads[known:]
        self._read(frame, step, [output], self.reads)
        self.aliases[id(renamed)] = weakref.ref(renamed), weakref.ref(aliased)
        return renamed

    def end(self, frame: Frame, output: Any) -> None:
        """Note what a call returns; an argument that it returns unchanged comes from this call from now on."""
        passed = []
        for tensor in () if output is self.fresh else _in_sequences((output,)):
            if self._is_older(frame, tensor):
                passed.append(tensor)
        if passed:
            step = len(self.owners)
            self._read(frame, step, passed, self.reads)
            self.owners.append(frame)
            for slot, tensor in enumerate(passed):
                self.producers[id(tensor)] = weakref.ref(tensor), (step, slot)
        if frame.outer is None:
            self.returned.clear()
            self._read(frame, -1, all_tensors(output), self.returned)

    def _is_older(self, frame: Frame, tensor: torch.Tensor) -> bool:
        began, (producer, origin) = self.began[frame.index], self.producers.get(id(tensor), (None, None))
        if producer is None or origin is None or origin[0] < began or producer() is not tensor:
            origin = self._origin(frame, tensor)
        return origin is not None and origin[0] < began

    def _origin(self, frame: Frame, tensor: torch.Tensor) -> Origin | None:
        """Return the step that a tensor's elements come from; None for a parameter or a constant."""
        producer, origin = self.producers.get(id(tensor), (None, None))
        if producer is None or producer() is not tensor:
            origin = None
        if (-1 if origin is None else origin[0]) < self.last_write:
            storage, last = self.wrote.get(_place(tensor), (None, None))
            if last is not None and (origin is None or last > origin) and storage is not None and storage() is not None:
                origin = last
        if origin is not None and id(tensor) in self.state:
            owner = self.owners[origin[0]]
            if owner is not None and owner.within == frame.within:
                return None
        return origin

    def _read(self, frame: Frame, step: int, values: Iterable[torch.Tensor], reads: list[Read]) -> None:
        """Append to ``reads`` those tensors that a step produced."""
        for tensor in values:
            origin = self._origin(frame, tensor)
            if origin is not None:
                spec = describe_tensor(tensor)
                for part in (spec,) if isinstance(spec, TensorSpec) else tensors(spec):
                    reads.append((origin, step, part))

    def flow(self, calls: Sequence[Call], place: Mapping[int, int]) -> Flow:
        """Return the flow between ``calls``; ``place`` has the call of each frame, by the frame's index."""
        owners = []
        for frame in self.owners:
            owners.append(FROM_INPUT if frame is None else place[frame.index])
        reads = self.reads.copy()
        for origin, _, spec in self.returned:
            reads.append((origin, len(owners), spec))
        outer: set[int] = set()
        for call in calls:
            if call.parent is not None:
                outer.add(call.parent)
        return _merged([*owners, RETURNED], reads, outer)


_TRAITS: dict[int, tuple[Any, bool, bool]] = {}
"""What :func:`_traits` returns, by the operator's id: operators are slow to hash."""


def _traits(func: Any) -> tuple[Any, bool, bool]:
    """Return an operator, whether it writes in place, and whether it reads values.

    ``zeros_like`` and ``new_full`` use only a tensor's shape, dtype and device.
    """
    schema = getattr(func, "_schema", None)
    name = "" if schema is None else str(schema.name)
    reads_none = name.startswith("aten::new_") or (name.startswith("aten::") and name.endswith("_like"))
    _TRAITS[id(func)] = func, schema is not None and schema.is_mutable, not reads_none
    return _TRAITS[id(func)]


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
    first: dict[int, int] = {}
    step_of = []
    """The step that each one counts as: for a call without nested calls, its first."""
    for step, owner in enumerate(owners):
        step_of.append(step if owner < 0 or owner in outer else first.setdefault(owner, step))
    targets: dict[int, set[int]] = defaultdict(set)
    for (source, _), target, _ in reads:
        targets[step_of[source]].add(step_of[target])
    for step in range(len(owners) - 1, -1, -1):
        if step_of[step] != step or owners[step] not in outer:
            continue
        after = set(map(step_of.__getitem__, targets[step])) - {step, -1}
        if not after:
            step_of[step] = -1
        elif len(after) == 1 and owners[(only := next(iter(after)))] == owners[step]:
            step_of[step] = only
    steps = sorted(set(step_of) - {-1})
    number = dict(zip(steps, range(len(steps))))
    links: dict[Read, Link] = {}
    results: defaultdict[int, dict[Origin, int]] = defaultdict(dict)
    for origin, step, tensor in reads:
        source, target = step_of[origin[0]], step_of[step]
        if source >= 0 and target >= 0 and source != target:
            result = results[source].setdefault(origin, len(results[source]))
            links.setdefault((origin, target, tensor), Link(number[source], number[target], tensor, result))
    return Flow(tuple(map(owners.__getitem__, steps)), tuple(links.values()))
