"""Kernels of a rank's pass: collectives, which send nothing, a builder's tensors, and balanced routing of tokens.

How many tokens each expert gets and each rank sends, only data decides: here, all get the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._ops import HigherOrderOperator, OpOverload
from torch.distributed.tensor import DTensor

from ..live.fakes import CPU, PRIM_DEVICE, Fake, fake_like, new_fake
from ..step.autograd.dispatch import StepKernels
from ..table.forward import Pass, device_of
from ..trace.assumed_routing import BALANCED
from ..trace.kernels import change_tensors, tensors_of, written
from ..trace.questions import Answers
from . import compat
from .collectives import AGREED, FROM_ONE, agreed
from .wrappers import RankLedger

COLLECTIVES = "c10d"
"""Namespace of operators on process groups (torch/csrc/distributed/c10d/Ops.cpp)."""

_PIN = torch.ops.aten._pin_memory.default
"""The operator that copies to pinned host memory, as offload policies request."""

_HISTC = torch.ops.aten.histc.default

_WAITS = ("_c10d_functional::_wrap_tensor_autograd", "_c10d_functional::wait_tensor")
"""Operators that return their argument; their kernels for fakes return a new tensor (_functional_collectives.py)."""

FUNCTIONAL = "_c10d_functional"
"""Namespace of the operators DTensor calls, on groups by name (torch/csrc/distributed/c10d/Functional.cpp)."""


_GATHERED = "fsdp::all_gather_copy_in"
"""The operator that copies a group's shards into what it gathers; before torch 2.9 it allocates that on a device."""

_EMPTY = torch.ops.aten.empty.memory_format


def _device_of(args: Sequence[Any]) -> torch.device | None:
    return next((value for value in args if isinstance(value, torch.device)), None)


class RankKernels(StepKernels):
    """Kernels of a step with collectives, which fill existing tensors with unknown values."""

    def __init__(self, device: torch.device, answers: Answers) -> None:
        super().__init__(device, answers)
        self.groups: set[str] = set()
        """Names of the process groups that were communicated in, and pairs of processes in them."""

    building = False
    """Whether the model is being built; its tensors are then placed on the step's device, whatever the builder asks
    for."""
    built_on_meta = False
    """Whether the builder created tensors on meta, which are placed on the device instead."""
    new_kind: str | None = None
    """The kind of the tensors that torch is allocating, all as fakes, however small; None otherwise."""

    @contextmanager
    def labelling(self, kind: str, ledger: RankLedger) -> Iterator[None]:
        """Inside the block, record new tensors under a kind, and give them no values."""
        outer, self.new_kind = self.new_kind, kind
        try:
            with ledger.labelling(kind):
                yield
        finally:
            self.new_kind = outer

    def _factory(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super()._factory(func, args, kwargs)
        if self.new_kind is not None:
            result = change_tensors(result, _without_values)
        if self.building:
            device = kwargs.get("device")
            self.built_on_meta |= device is not None and torch.device(device).type == "meta"
            result = change_tensors(result, self._placed)
        return result

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        elsewhere = isinstance(tensor, Fake) and tensor.fake_device.type != self.device.type
        return fake_like(tensor, self.device) if elsewhere else tensor

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        counts = balanced(func, args, kwargs) if func in COUNTS and not self._can_count(func, args[0]) else None
        if counts is not None:
            self.answers.assume(self.module(), func.name(), BALANCED)
            return self._noted(self._on_device(counts))
        if isinstance(func, OpOverload) and func.namespace == COLLECTIVES:
            return self._collective(func, args, kwargs)
        if isinstance(func, OpOverload) and func._schema.name == _GATHERED and _device_of(args) is not None:
            return self._gathered(*args, **kwargs)
        if func is _PIN:
            return fake_like(args[0], CPU) if isinstance(args[0], Fake) else self._noted(args[0].clone())
        if isinstance(func, OpOverload) and func.namespace == FUNCTIONAL:
            self.groups.update(_group_names(func, args, kwargs))
            if func._schema.name in _WAITS:
                return self.in_step(torch.ops.aten.alias.default, args[:1], {})
            if func is compat.exchange and list(args[1]) == list(args[2]):
                return self._exchanged(args[0], compat.group_named(_group_names(func, args, kwargs)[0]))
        return self.in_step(func, args, kwargs)

    def _gathered(
        self, shards: Any, sizes: Any, count: int, world: int, rank: int, dtype: torch.dtype, *place: Any
    ) -> Any:
        """Return this rank's part of what a group gathers, and the whole: new tensors, on the device that is named."""
        whole = self.in_step(_EMPTY, ([count * world],), {"dtype": dtype, "device": _device_of(place)})
        part = self.in_step(torch.ops.aten.slice.Tensor, (whole, 0, count * rank, count * (rank + 1)), {})
        return part, whole

    def _can_count(self, func: OpOverload, chosen: torch.Tensor) -> bool:
        """Whether an operator can count a tensor's values; on the CPU, ``histc`` takes only floating-point ones."""
        return self._value_of(chosen, False) is not None and (func is not _HISTC or chosen.is_floating_point())

    def _know(self, filled: torch.Tensor, values: torch.Tensor) -> None:
        """Record the values of a tensor that a collective filled."""
        if isinstance(filled, Fake):
            filled.known = values
            self.spoilt.pop(filled.untyped_storage()._cdata, None)
        elif filled.shape == values.shape:
            filled.copy_(values)
            self.tainted.pop(filled.untyped_storage()._cdata, None)

    def _exchanged(self, sent: torch.Tensor, group: Any) -> Any:
        """Return what an even exchange gives this rank; small values are those it gets if all ranks send the same."""
        values = self._value_of(sent, False)
        if values is None or len(values) % group.size():
            whole = {"memory_format": torch.contiguous_format}
            return self.in_step(torch.ops.aten.empty_like.default, (sent,), whole)
        return self._noted(self._on_device(exchanged(values, group.size(), group.rank())))

    def _collective(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = list(self._agreed(func, args))
        for tensor in written(func, args, kwargs):
            self._taint(tensor)
        for tensor, values in known:
            self._know(tensor, values)
        for group in filter(None, map(_as_group, args)):
            peer = next((value for value in args if isinstance(value, int)), None)
            is_pair = func._schema.name in _POINT_TO_POINT
            self.groups.add(f"{group.group_name}: {peer}" if is_pair else group.group_name)
        schema = func._schema
        filled = [value for value, argument in zip(args, schema.arguments) if str(argument.type) in _FILLED]
        results = [_done(filled[:1]) if str(value.type).endswith("Work") else filled[0] for value in schema.returns]
        return None if not results else tuple(results) if len(results) > 1 else results[0]

    def _agreed(self, func: OpOverload, args: tuple[Any, ...]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the tensors whose values are known if all ranks send the same, and these values."""
        name, group = func._schema.name, next(filter(None, map(_as_group, args)))
        if name == "c10d::alltoall_base_":
            sent = self._value_of(args[1], False)
            if sent is not None:
                yield args[0], exchanged(sent, group.size(), group.rank())
            return
        for filled, values in agreed(name, args, group.rank(), self._counted):
            if name not in FROM_ONE:
                self.answers.assume(self.module(), func.name(), AGREED)
            yield filled, values

    def _counted(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a tensor of counts, flags or bytes; weights and losses do not steer a program."""
        return None if tensor.is_floating_point() or tensor.is_complex() else self._value_of(tensor, False)


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fake in place of a real tensor of floating-point numbers."""
    is_real = not isinstance(tensor, Fake) and tensor.is_floating_point()
    return new_fake(tensor.shape, tensor.dtype, tensor.device) if is_real else tensor


def _as_group(value: Any) -> Any:
    """Unbox a process group passed to an operator; None for any other value."""
    is_group = isinstance(value, torch.ScriptObject) and str(value._type()).endswith(".ProcessGroup")
    return dist.ProcessGroup.unbox(value) if is_group else None


def _group_names(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args)} | kwargs
    name = named.get("group_name")
    return [name if isinstance(name, str) else name.group_name] if name is not None else []


_POINT_TO_POINT = ("c10d::send", "c10d::recv_", "c10d::recv_any_source_")
"""Operators between two ranks, for which NCCL has a communicator of each pair (ProcessGroupNCCL.cpp)."""
_FILLED = ("Tensor", "List[Tensor]", "List[List[Tensor]]")
"""Types of the tensors that a collective fills, its first tensor argument."""


def _done(filled: list[Any]) -> Any:
    """Return completed work whose future holds the tensors, as real backends' does."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(tensors_of(filled))
    return compat.work_of(future).boxed()


aten = torch.ops.aten


def _bins(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the number of bins of a histogram; 0 if it depends on the data, or if elements have weights."""
    arguments: dict[str, Any] = dict(zip([argument.name for argument in func._schema.arguments], args)) | kwargs
    if func is aten.histc.default:
        return int(arguments.get("bins", 100))
    return 0 if arguments.get("weights") is not None else int(arguments.get("minlength", 0))


def balanced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return a histogram with all bins alike, the first ones by one more where they must; None for other operators.

    >>> balanced(aten.bincount.default, (torch.empty(10, dtype=torch.long, device="meta"),), {"minlength": 4})
    tensor([3, 3, 2, 2])
    """
    bins = _bins(func, args, kwargs) if func in COUNTS else 0
    if not bins:
        return None
    each, more = divmod(args[0].numel(), bins)
    counts = torch.full((bins,), each, dtype=torch.long)
    counts[:more] += 1
    return counts.to(args[0].dtype) if func is aten.histc.default else counts


COUNTS = (aten.bincount.default, aten.histc.default)
"""Operators by which routers count an expert's tokens."""


def exchanged(counts: Tensor, ranks: int, rank: int) -> Tensor:
    """Return what a rank receives if every rank sends these counts: its own part, from each of them.

    >>> exchanged(torch.tensor([3, 3, 2, 2]), ranks=2, rank=0)
    tensor([3, 3, 3, 3])
    """
    own = counts.chunk(ranks)[rank]
    return own.repeat(ranks, *[1] * (counts.dim() - 1))


_ENGINE = getattr(compat.run_backward, "__code__", None)
_ON_SHARDS = "run_dtensor_rng_op"
"""The operator that runs a random operator on a shard, between two states of the generator
(torch/_prims/rng_prims.py)."""
_DISPATCH_THEMSELVES = (DTensor, *compat.awaited)


class RankPass(Pass):
    """A pass that leaves operators on distributed tensors to torch and records those on their local parts.

    torch dispatches them in C++; calling their class from here would re-enter this mode endlessly. In a backward,
    Python hooks of torch.distributed see a tensor's true device, while the engine sees meta. DTensor's own code, such
    as that of a loss over a split vocabulary, calls composite operators below autograd.
    """

    below_autograd = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        state = self.state
        if func is PRIM_DEVICE and state.in_engine and not state.as_meta and sys._getframe(1).f_code is not _ENGINE:
            return device_of(args[0])
        if isinstance(func, HigherOrderOperator) and func.name() == _ON_SHARDS:
            _, _, func, *args = args
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _by_classes(self, func: Any, kinds: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(issubclass(kind, _DISPATCH_THEMSELVES) for kind in kinds):
            return NotImplemented
        return super()._by_classes(func, kinds, args, kwargs)
