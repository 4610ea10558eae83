"""Listeners for a table: calls with shapes, multiply-adds, parameters used, and functions outside modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode, resolve_name

from ..data.records import Call, ModuleSpec, Structure
from ..live.structures import describe_arguments, describe_tensors, kinds_left, suspended_code
from ..ops.macs import multiply_adds
from ..trace.kernels import tensors_of
from .forward import Frame, Listener, Pass


class _Record:
    """A call's data while the pass runs."""

    __slots__ = ("computed", "finished", "frame", "inputs", "macs", "outputs", "suspended", "unknown", "used")

    def __init__(self, frame: Frame, inputs: Structure) -> None:
        self.frame = frame
        self.inputs = inputs
        self.outputs: Structure = None
        self.finished: int | None = None
        self.macs = 0
        self.unknown: Counter[str] | None = None
        self.used: set[int] = set()
        self.suspended: list[Any] = []
        self.computed = False

    def is_shown(self) -> bool:
        """Whether the call gets a row: every module, and functions that computed something from tensors."""
        return self.frame.module is not None or (self.computed and self.inputs is not None)


class Recorder(Listener):
    """Records the calls of a pass. ``parameters`` maps the id of a parameter's tensor to its key."""

    def __init__(self, parameters: Mapping[int, int]) -> None:
        self.parameters = parameters
        self.records: list[_Record] = []
        self.ended = 0

    def begin(self, frame: Frame) -> None:
        """Start a record with the call's inputs."""
        self.records.append(_Record(frame, describe_arguments(frame.args, frame.kwargs)))

    def end(self, frame: Frame, output: Any) -> None:
        """Complete the record with the call's outputs."""
        record = self.records[frame.index]
        record.outputs = describe_tensors(output)
        record.suspended = suspended_code(output)
        record.finished = self.ended
        self.ended += 1

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Add the operator's multiply-adds and parameters to the call's record."""
        if frame is None:
            return
        record = self.records[frame.index]
        macs = multiply_adds(func, args, kwargs, out)
        if macs is None:
            record.unknown = record.unknown or Counter()
            record.unknown[str(func)] += 1
        elif macs:
            record.macs += macs
        record.computed = record.computed or not _is_view(func)
        record.used.update(self.parameters[id(tensor)] for tensor in tensors_of(args) if id(tensor) in self.parameters)

    def settle(self) -> list[str]:
        """Count code that a call returned and that has not run as unknown, in the innermost call; return its kinds."""
        known: set[int] = set()
        kinds: list[str] = []
        for record in reversed(self.records):
            new = [code for code in record.suspended if id(code) not in known]
            known.update(map(id, new))
            left = kinds_left(new)
            if left:
                record.unknown = (record.unknown or Counter()) + Counter(left)
                kinds += left
        return kinds

    def reached(self, modules: Sequence[ModuleSpec]) -> tuple[str, ...]:
        """Return the calls that have returned, in that order, for the report of a failed pass."""
        finished = sorted((r for r in self.records if r.finished is not None), key=lambda r: r.finished or 0)
        return tuple(_called(r.frame, modules) for r in finished)

    def calls(self) -> tuple[Call, ...]:
        """Return the calls in the order they began, without functions that get no row."""
        records = self._shown()
        place = {id(record): index for index, record in enumerate(records)}
        order = sorted(range(len(records)), key=lambda index: records[index].finished or 0)
        rank = {index: position for position, index in enumerate(order)}
        self._inherit(place)
        return tuple(self._call(index, record, rank[index], place) for index, record in enumerate(records))

    def places(self) -> dict[int, int]:
        """Return the index of the call that each frame counts as: its own or, without a row, the enclosing one."""
        own = {record.frame.index: index for index, record in enumerate(self._shown())}
        calls: dict[int, int] = {}
        for record in self.records:
            frame = record.frame
            around = 0 if frame.outer is None else calls[frame.outer.index]
            calls[frame.index] = own.get(frame.index, around)
        return calls

    def _shown(self) -> list[_Record]:
        return [r for r in self.records if r.finished is not None and r.is_shown()]

    def _inherit(self, place: Mapping[int, int]) -> None:
        """Move a left-out call's counts to the enclosing call."""
        for record in reversed(self.records):
            if id(record) not in place and record.frame.outer is not None:
                outer = self.records[record.frame.outer.index]
                outer.macs += record.macs
                outer.unknown = (outer.unknown or Counter()) + (record.unknown or Counter())
                outer.used |= record.used

    def _call(self, index: int, record: _Record, rank: int, place: Mapping[int, int]) -> Call:
        frame = record.frame
        outer = frame.outer
        while outer is not None and id(self.records[outer.index]) not in place:
            outer = outer.outer
        return Call(
            index=index,
            parent=None if outer is None else place[id(self.records[outer.index])],
            module=frame.module,
            name=frame.name if frame.module is None else "",
            finished=rank,
            inputs=record.inputs,
            outputs=record.outputs,
            macs=record.macs,
            unknown_ops=tuple(sorted(record.unknown.items())) if record.unknown else (),
            used=frozenset(record.used),
            path=frame.name if frame.module is not None else "",
        )


def _called(frame: Frame, modules: Sequence[ModuleSpec]) -> str:
    if frame.module is None:
        return frame.name
    kind = modules[frame.module].class_name
    return f"{frame.name} ({kind})" if frame.name else kind


_views: dict[int, bool] = {}


def _is_view(func: Any) -> bool:
    known = _views.get(id(func))
    if known is None:
        schema = getattr(func, "_schema", None)
        returns = schema.returns if schema is not None else ()
        known = _views[id(func)] = bool(returns) and all(
            value.alias_info is not None and not value.alias_info.is_write for value in returns
        )
    return known


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
        if not self.watch.state.notifies or frame is None or not self._speaks_for_itself(frame.module):
            return func(*args, **kwargs)
        name = function_name(func)
        if name is None:
            return func(*args, **kwargs)
        call = self.watch.open(None, name, args, kwargs)
        output = func(*args, **kwargs)
        self.watch.close(call, output)
        return output

    def _speaks_for_itself(self, index: int | None) -> bool:
        """Whether the functions that module number ``index`` calls get rows of their own."""
        if index is None:
            return False
        module = self.watch.tree.modules[index]
        return index == 0 or (bool(module._modules) and not type(module).__module__.startswith("torch.nn."))


def function_name(func: Any) -> str | None:
    """Return the plain name of a torch function or method ("cat", "add", "relu_"); None for an attribute.

    >>> import torch
    >>> function_name(torch.nn.functional.relu), function_name(torch.Tensor.__add__)
    ('relu', 'add')
    >>> function_name(torch.Tensor.shape.__get__) is None
    True
    """
    name = getattr(func, "__name__", None)
    if name is None or name in ("__get__", "__set__", "__delete__"):
        return None
    if name.startswith("__") and name.endswith("__"):
        return str(name).strip("_") or None
    return str(name) if resolve_name(func) is not None else None
