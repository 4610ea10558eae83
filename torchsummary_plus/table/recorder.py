"""Listeners for a table: calls with shapes, multiply-adds and parameters used, which call produced each tensor.

Functions outside modules become calls on request.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, strided
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode, resolve_name

from ..data.records import FROM_INPUT, RETURNED, Call, Flow, Link, ModuleSpec, Structure, TensorSpec, tensors
from ..live.fakes import Fake
from ..live.structures import (
    all_tensors,
    describe_arguments,
    describe_tensor,
    describe_tensors,
    kinds_left,
    suspended_code,
)
from ..ops.macs import multiply_adds
from ..trace.kernels import tensors_of, written
from .forward import Frame, Listener, Pass
from .modules import ModuleTree


@dataclass(eq=False, slots=True)
class _Record:
    """A call's data while the pass runs."""

    frame: Frame
    inputs: Structure
    computed: bool
    """Whether it gets a row: every module does, and a function that computed something from tensors."""
    outputs: Structure = None
    finished: bool = False
    macs: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    suspended: Sequence[Any] = ()


class Recorder(Listener):
    """Records the calls of a pass on a copy of a model."""

    def __init__(self, tree: ModuleTree, specs: Sequence[ModuleSpec]) -> None:
        self.specs = specs
        self.parameters: dict[int, int] = {}
        """Each parameter's key, by the id of the tensor that replaces it in this pass."""
        for module, spec in zip(tree.modules, specs):
            for parameter in spec.parameters:
                if parameter.name in module._parameters:
                    self.parameters[id(module._parameters[parameter.name])] = parameter.key
        self.records: list[_Record] = []
        self.ended: list[_Record] = []
        self.places: dict[int, int] = {}
        """The index of the call that each frame counts as: its own or, without a row, the enclosing one."""

    def begin(self, frame: Frame) -> None:
        """Start a record with the call's inputs."""
        is_one = len(frame.args) == 1 and not frame.kwargs  # As of most calls.
        inputs = describe_tensors(frame.args[0]) if is_one else describe_arguments(frame.args, frame.kwargs)
        self.records.append(_Record(frame, inputs, frame.module is not None))

    def end(self, frame: Frame, output: Any) -> None:
        """Complete the record with the call's outputs."""
        record = self.records[frame.index]
        record.outputs, record.finished = describe_tensors(output), True
        if not isinstance(output, Tensor):
            record.suspended = suspended_code(output)
        self.ended.append(record)

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Add the operator's multiply-adds and parameters to the call's record."""
        if frame is None:
            return
        record = self.records[frame.index]
        macs = multiply_adds(func, args, kwargs, out)
        if macs is None:
            record.unknown = Counter(record.unknown) + Counter([str(func)])
        elif macs:
            record.macs += macs
        record.computed = record.computed or not getattr(func, "is_view", False)
        for tensor in tensors_of(args):
            if id(tensor) in self.parameters:
                record.used.add(self.parameters[id(tensor)])

    def finish(self) -> list[str]:
        """Count code that a call returned and that has not run as unknown, in the innermost call; return its kinds."""
        known: set[int] = set()
        kinds: list[str] = []
        for record in reversed(self.records):
            if record.suspended:
                new = [code for code in record.suspended if id(code) not in known]
                known.update(map(id, new))
                left = kinds_left(new)
                record.unknown = Counter(record.unknown) + Counter(left)
                kinds += left
        return kinds

    def reached(self) -> tuple[str, ...]:
        """Return the calls that have returned, in that order, for the report of a failed pass."""
        names = []
        for record in self.ended:
            name, module = record.frame.name, record.frame.module
            kind = "" if module is None else self.specs[module].class_name
            names.append(f"{name} ({kind})" if name and kind else name or kind)
        return tuple(names)

    def calls(self) -> tuple[Call, ...]:
        """Return the calls in the order they began; functions that get no row count in the enclosing call."""
        shown: list[_Record] = []
        for record in self.records:
            frame = record.frame
            if record.finished and record.computed and (frame.module is not None or record.inputs is not None):
                self.places[frame.index] = len(shown)
                shown.append(record)
            else:
                self.places[frame.index] = 0 if frame.outer is None else self.places[frame.outer.index]
                record.finished = False
        for record in reversed(self.records):
            if not record.finished and record.frame.outer is not None:
                outer = self.records[record.frame.outer.index]
                outer.macs += record.macs
                outer.unknown = Counter(outer.unknown) + Counter(record.unknown)
                outer.used |= record.used
        ended = [record.frame.index for record in self.ended if record.finished]
        ranks = dict(zip(ended, range(len(ended))))
        calls = []
        for index, record in enumerate(shown):
            frame, is_function = record.frame, record.frame.module is None
            call = Call(
                index=index,
                parent=None if frame.outer is None else self.places[frame.outer.index],
                module=frame.module,
                name=frame.name if is_function else "",
                finished=ranks[frame.index],
                inputs=record.inputs,
                outputs=record.outputs,
                macs=record.macs,
                unknown_ops=tuple(sorted(record.unknown.items())),
                used=frozenset(record.used),
                path="" if is_function else frame.name,
            )
            calls.append(call)
        return tuple(calls)


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

    def __init__(self, inputs: Sequence[Tensor], state: Iterable[Tensor]) -> None:
        self.state = set(map(id, state))
        self.owners: list[Frame | None] = []
        self.reads: list[Read] = []
        self.began: dict[int, int] = {}
        self.producers: dict[int, tuple[weakref.ref[Tensor], Origin]] = {}
        """Each tensor by id, with what produced it."""
        self.wrote: dict[int | None, tuple[weakref.ref[torch.UntypedStorage], Origin]] = {}
        """The last write to each storage, by its address."""
        self.last_write = -1
        """The step of the last write to any storage."""
        self.returned: list[Read] = []
        for tensor in inputs:
            self.producers[id(tensor)] = weakref.ref(tensor), (len(self.owners), 0)
            self.owners.append(None)

    def begin(self, frame: Frame) -> None:
        """Remember where in the pass a call begins."""
        self.began[frame.index] = len(self.owners)

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record which call wrote the operator's results, and the tensors it read."""
        if frame is None:
            return
        outs = tensors_of(out)
        changed = written(func, args, kwargs) if isinstance(func, OpOverload) else []
        if not outs and not changed:
            return
        step = len(self.owners)
        if _reads_values(func):
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
        is_passed = type(output) is Fake and not output.is_nested and self._is_older(frame, output)
        return torch.ops.aten.alias.default(output) if is_passed else output

    def end(self, frame: Frame, output: Any) -> None:
        """Note what a call returns; an argument that it returns unchanged comes from this call from now on."""
        returned = () if isinstance(output, dict) else tensors_of(output)
        passed = [tensor for tensor in returned if self._is_older(frame, tensor)]
        if passed:
            step = len(self.owners)
            self._read(frame, step, passed, self.reads)
            self.owners.append(frame)
            for slot, tensor in enumerate(passed):
                self.producers[id(tensor)] = weakref.ref(tensor), (step, slot)
        if frame.outer is None:
            self.returned.clear()
            self._read(frame, -1, all_tensors(output), self.returned)

    def _is_older(self, frame: Frame, tensor: Tensor) -> bool:
        origin = self._origin(frame, tensor)
        return origin is not None and origin[0] < self.began[frame.index]

    def _origin(self, frame: Frame, tensor: Tensor) -> Origin | None:
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

    def _read(self, frame: Frame, step: int, values: Iterable[Tensor], reads: list[Read]) -> None:
        """Append to ``reads`` those tensors that a step produced."""
        for tensor in values:
            origin = self._origin(frame, tensor)
            if origin is not None:
                spec = describe_tensor(tensor)
                for part in (spec,) if isinstance(spec, TensorSpec) else tensors(spec):
                    reads.append((origin, step, part))

    def flow(self, calls: Sequence[Call], place: Mapping[int, int]) -> Flow:
        """Return the flow between ``calls``; ``place`` has the call of each frame, by the frame's index."""
        owners = [FROM_INPUT if frame is None else place[frame.index] for frame in self.owners]
        returned = [(origin, len(owners), spec) for origin, _, spec in self.returned]
        return _merged([*owners, RETURNED], self.reads + returned, {call.parent for call in calls})


@cache
def _reads_values(func: Any) -> bool:
    """Whether an operator reads values: ``zeros_like`` and ``new_full`` use only a tensor's shape, dtype and device."""
    name = str(func._schema.name) if isinstance(func, OpOverload) else ""
    return not name.startswith("aten::new_") and not (name.startswith("aten::") and name.endswith("_like"))


def _place(tensor: Tensor) -> int | None:
    """Return the address of a tensor's storage; None if it has none of its own."""
    if tensor.layout is not strided or tensor.is_nested:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _merged(owners: Sequence[int], reads: Sequence[Read], outer: Collection[int | None]) -> Flow:
    """Return the flow with one step for each call that has no nested calls.

    Of the steps between a call's nested calls, those that lead nowhere are left out, and those that lead only to one
    other step of the same call are merged with it.
    """
    first: dict[int, int] = {}
    # The step that each one counts as: for a call without nested calls, its first.
    step_of = [s if owner < 0 or owner in outer else first.setdefault(owner, s) for s, owner in enumerate(owners)]
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


class Functions(TorchFunctionMode):
    """Opens a call for each torch function in a module's own ``forward``, under the name used in the source.

    Modules without children and torch's own modules are skipped: their functions belong to their row.
    """

    def __init__(self, watch: Pass) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        frame = self.watch.frame
        if not self.watch.state.notifies or frame is None or frame.module is None:
            return func(*args, **kwargs)
        module, name = self.watch.tree.modules[frame.module], function_name(func)
        has_rows = module._modules and not type(module).__module__.startswith("torch.nn.")
        if name is None or not (has_rows or frame.module == 0):
            return func(*args, **kwargs)
        call = self.watch.open(None, name, args, kwargs)
        output = func(*args, **kwargs)
        self.watch.close(call, output)
        return output


def function_name(func: Any) -> str | None:
    """Return the plain name of a torch function or method ("cat", "add", "relu_"); None for an attribute.

    >>> import torch
    >>> function_name(torch.nn.functional.relu), function_name(Tensor.__add__)
    ('relu', 'add')
    >>> function_name(Tensor.shape.__get__) is None
    True
    """
    name = getattr(func, "__name__", None)
    if name is None or name in ("__get__", "__set__", "__delete__"):
        return None
    if name.startswith("__") and name.endswith("__"):
        return str(name).strip("_") or None
    return str(name) if resolve_name(func) is not None else None
