"""Listeners for a table: calls with shapes, multiply-adds, parameters used, and functions outside modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from ..data.records import Call, ModuleSpec, Structure
from ..live.structures import describe_arguments, describe_tensors, kinds_left, suspended_code
from ..ops.macs import multiply_adds
from ..trace.kernels import tensors_of
from .forward import Frame, Listener, Pass
from .modules import ModuleTree


class _Record:
    """A call's data while the pass runs."""

    __slots__ = ("computed", "finished", "frame", "inputs", "macs", "outputs", "suspended", "unknown", "used")

    def __init__(self, frame: Frame, inputs: Structure) -> None:
        self.frame = frame
        self.inputs = inputs
        self.outputs: Structure = None
        self.finished = False
        self.macs = 0
        self.unknown: Counter[str] | None = None
        self.used: set[int] = set()
        self.suspended: list[Any] = []
        self.computed = frame.module is not None
        """Whether it gets a row: every module does, and a function that computed something from tensors."""


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
        self.records.append(_Record(frame, inputs))

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
            record.unknown = record.unknown or Counter()
            record.unknown[str(func)] += 1
        elif macs:
            record.macs += macs
        record.computed = record.computed or not _is_view(func)
        for value in args:
            if id(value) in self.parameters:
                record.used.add(self.parameters[id(value)])
            elif isinstance(value, (list, tuple)):
                for tensor in tensors_of(value):
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
                record.unknown = (record.unknown or Counter()) + Counter(left)
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
                outer.unknown = (outer.unknown or Counter()) + (record.unknown or Counter())
                outer.used |= record.used
        ranks: dict[int, int] = {}
        for record in self.ended:
            if record.finished:
                ranks[record.frame.index] = len(ranks)
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
                unknown_ops=tuple(sorted(record.unknown.items())) if record.unknown else (),
                used=frozenset(record.used),
                path="" if is_function else frame.name,
            )
            calls.append(call)
        return tuple(calls)


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
