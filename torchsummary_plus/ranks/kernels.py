"""Kernels of a rank's pass: collectives, which send nothing, a builder's tensors, and balanced routing of tokens.

How many tokens each expert gets and each rank sends, only data decides: here, all get the same. What a collective fills
is known if all ranks contribute equally.

On CPUs, gloo has scratch memory (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp). An all-gather runs on
a flat copy of its outputs (``AsyncAllgatherWork``); a reduce-scatter is an all-reduce of a clone of its input
(``reduce_scatter_tensor_coalesced``). In-place sums, sends and ``all_to_all_single`` need nothing. An average divides
the sum by the number of ranks, for which torch makes two tensors of one element. NCCL works on the tensors themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._ops import HigherOrderOperator, OpOverload
from torch.distributed.tensor import DTensor

from ..live.compat import replaced
from ..live.fakes import CPU, PRIM_DEVICE, Fake, fake_like, new_fake
from ..ops.scratch.registry import UNKNOWN, Alloc, AtMost, Timeline, scratch
from ..step.autograd.dispatch import StepKernels
from ..table.forward import Pass, device_of
from ..trace.kernels import BALANCED, change_tensors, tensors_of, written
from ..trace.values import ValueSource
from . import compat
from .wrappers import RankLedger

aten = torch.ops.aten
_PIN = aten._pin_memory.default
"""The operator that copies to pinned host memory, as offload policies request."""
_HISTC = aten.histc.default

_WAITS = ("_c10d_functional::_wrap_tensor_autograd", "_c10d_functional::wait_tensor")
"""Operators that return their argument; their kernels for fakes return a new tensor (_functional_collectives.py)."""

_GATHERED = "fsdp::all_gather_copy_in"
"""The operator that copies a group's shards into what it gathers; before torch 2.9 it allocates that on a device."""


class RankKernels(StepKernels):
    """Kernels of a step with collectives, which fill existing tensors with unknown values."""

    def __init__(self, device: torch.device, answers: ValueSource, ledger: RankLedger) -> None:
        super().__init__(device, answers)
        self.ledger = ledger
        self.groups: set[str] = set()
        """Names of the process groups that were communicated in, and pairs of processes in them."""

    building = False
    """Whether the model is being built; its tensors are then placed on the step's device, whatever the builder asks
    for."""
    built_on_meta = False
    """Whether the builder created tensors on meta, which are placed on the device instead."""

    def labelling(self, kind: str) -> Any:
        """Return a context or decorator that records new tensors under a kind, all of them fakes, however small."""
        return replaced({(self.ledger, "new_kind"): kind})

    @contextmanager
    def seen_as_meta(self) -> Iterator[None]:
        """Inside the block, let the engine and Python see fakes as meta tensors."""
        with self.watch.state.override(in_engine=True, as_meta=True):
            yield

    def _factory(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super()._factory(func, args, kwargs)

        def without_values(tensor: Tensor) -> Tensor:
            is_real = not isinstance(tensor, Fake) and tensor.is_floating_point()
            return new_fake(tensor.shape, tensor.dtype, tensor.device) if is_real else tensor

        def placed(tensor: Tensor) -> Tensor:
            is_elsewhere = isinstance(tensor, Fake) and tensor.fake_device.type != self.device.type
            return fake_like(tensor, self.device) if is_elsewhere else tensor

        if self.ledger.new_kind is not None:
            result = change_tensors(result, without_values)
        if self.building:
            device = kwargs.get("device")
            self.built_on_meta |= device is not None and torch.device(device).type == "meta"
            result = change_tensors(result, placed)
        return result

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        counts = balanced(func, args, kwargs) if func in COUNTS and not self._can_count(func, args[0]) else None
        if counts is not None:
            self.answers.assume(self.module(), func.name(), BALANCED)
            return self.note_created(self._on_device(counts))
        if isinstance(func, OpOverload) and func.namespace == "c10d":  # torch/csrc/distributed/c10d/Ops.cpp
            return self._collective(func, args, kwargs)
        if isinstance(func, OpOverload) and func._schema.name == _GATHERED and isinstance(args[-1], torch.device):
            return self._gathered(*args)
        if func is _PIN:
            return fake_like(args[0], CPU) if isinstance(args[0], Fake) else self.note_created(args[0].clone())
        if isinstance(func, OpOverload) and func.namespace == "_c10d_functional":
            # DTensor's, on groups by name (torch/csrc/distributed/c10d/Functional.cpp).
            self.groups.update(_group_names(func, args, kwargs))
            if func._schema.name in _WAITS:
                return self.in_step(aten.alias.default, args[:1], {})
            if func is compat.exchange and list(args[1]) == list(args[2]):
                # An even exchange; small values are those that this rank gets if all ranks send the same.
                group, values = compat.group_named(_group_names(func, args, kwargs)[0]), self._value_of(args[0], False)
                if values is not None and len(values) % group.size() == 0:
                    return self.note_created(self._on_device(exchanged(values, group.size(), group.rank())))
                whole = {"memory_format": torch.contiguous_format}
                return self.in_step(aten.empty_like.default, args[:1], whole)
        return self.in_step(func, args, kwargs)

    def _gathered(
        self, shards: Any, sizes: Any, count: int, world: int, rank: int, dtype: torch.dtype, device: torch.device
    ) -> Any:
        """Return this rank's part of what a group gathers, and the whole: new tensors, on the device that is named."""
        whole = self.in_step(aten.empty.memory_format, ([count * world],), {"dtype": dtype, "device": device})
        part = self.in_step(aten.slice.Tensor, (whole, 0, count * rank, count * (rank + 1)), {})
        return part, whole

    def _can_count(self, func: OpOverload, chosen: Tensor) -> bool:
        """Whether an operator can count a tensor's values; on the CPU, ``histc`` takes only floating-point ones."""
        return self._value_of(chosen, False) is not None and (func is not _HISTC or chosen.is_floating_point())

    def _collective(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, group = func._schema.name, next(filter(None, map(_as_group, args)))
        known = list(agreed(name, args, group.rank(), group.size(), lambda tensor: self._value_of(tensor, False)))
        for tensor in written(func, args, kwargs):
            self._note_overwritten(tensor)
        for tensor, values in known:
            if name not in _UNASSUMED:
                self.answers.assume(self.module(), func.name(), AGREED)
            if isinstance(tensor, Fake):
                tensor.known = values
                self.outdated.pop(tensor.untyped_storage()._cdata, None)
            elif tensor.shape == values.shape:
                tensor.copy_(values)
                self.overwritten.pop(tensor.untyped_storage()._cdata, None)
        peer = next((value for value in args if isinstance(value, int)), None)
        self.groups.add(f"{group.group_name}: {peer}" if name in _POINT_TO_POINT else group.group_name)
        schema = func._schema
        filled = [value for value, argument in zip(args, schema.arguments) if str(argument.type) in _FILLED]
        done: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        done.set_result(tensors_of(filled[:1]))
        is_work = [str(value.type).endswith("Work") for value in schema.returns]
        results = [compat.work_of(done).boxed() if work else filled[0] for work in is_work]
        return None if not results else tuple(results) if len(results) > 1 else results[0]


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


def balanced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return a histogram of :data:`COUNTS` with all bins alike, the first ones by one more where they must.

    None if the number of bins depends on the data or elements have weights.

    >>> balanced(aten.bincount.default, (torch.empty(10, dtype=torch.long, device="meta"),), {"minlength": 4})
    tensor([3, 3, 2, 2])
    """
    arguments: dict[str, Any] = dict(zip([argument.name for argument in func._schema.arguments], args)) | kwargs
    bins = int(arguments.get("bins", 100) if func is _HISTC else arguments.get("minlength", 0))
    if not bins or arguments.get("weights") is not None:
        return None
    each, more = divmod(args[0].numel(), bins)
    counts = torch.full((bins,), each, dtype=torch.long)
    counts[:more] += 1
    return counts.to(args[0].dtype) if func is _HISTC else counts


COUNTS = (aten.bincount.default, _HISTC)
"""Operators by which routers count an expert's tokens."""


def exchanged(counts: Tensor, ranks: int, rank: int) -> Tensor:
    """Return what a rank receives if every rank sends these counts: its own part, from each of them.

    >>> exchanged(torch.tensor([3, 3, 2, 2]), ranks=2, rank=0)
    tensor([3, 3, 3, 3])
    """
    own = counts.chunk(ranks)[rank]
    return own.repeat(ranks, *[1] * (counts.dim() - 1))


_COPIED = {
    "c10d::_allgather_base_": 1, "c10d::allgather_": 1, "c10d::allgather_into_tensor_coalesced_": 1,
    "_c10d_functional::all_gather_into_tensor": 0, "_c10d_functional::reduce_scatter_tensor": 1,
    "c10d::_reduce_scatter_base_": 2, "c10d::reduce_scatter_tensor_coalesced_": 2, "c10d::reduce_scatter_": 2,
    **dict.fromkeys(("c10d::allreduce_", "c10d::reduce_", "c10d::allreduce_coalesced_", "c10d::alltoall_base_")),
    **dict.fromkeys(f"_c10d_functional::{name}" for name in ("all_reduce", "all_reduce_", "all_to_all_single")),
}  # fmt: skip
"""What a collective copies: its result (0) or an argument (from 1), or nothing; of lists of tensors, the largest one of
``reduce_scatter_``."""

_UNMODELLED = (
    *("c10d::alltoall_", "c10d::gather_", "c10d::scatter_", "_dtensor::shard_dim_alltoall"),
    *(f"_c10d_functional::{name}_coalesced" for name in ("all_gather_into_tensor", "reduce_scatter_tensor")),
)


def _rule(name: str, place: int | None) -> Callable[..., Timeline | AtMost]:
    """Return a rule: a copy, and for an average the number of ranks, as an int64 and in the tensors' dtype.

    Before torch 2.10, Python cannot tell an average from a sum.
    """

    def formula(out: Any, *args: Any, **_: Any) -> Timeline | AtMost:
        sizes = [] if place is None else [tensor.nbytes for tensor in tensors_of(((out, *args)[place],))]
        nbytes = max(sizes) if name == "c10d::reduce_scatter_" else sum(sizes)
        kinds = {_is_average(value) for value in args}
        if not kinds - {False}:
            return (Alloc(nbytes),)
        divisor = torch.int64.itemsize + tensors_of(args)[0].element_size()
        return (Alloc(nbytes + divisor),) if True in kinds else AtMost(divisor, (Alloc(nbytes),))

    return formula


def _is_average(operator: Any) -> bool | None:
    """Whether an argument asks for an average; None if that cannot be read."""
    if isinstance(operator, str):
        return operator.lower() == "avg"
    if not isinstance(operator, torch.ScriptObject) or not str(operator._type()).endswith(".ReduceOp"):
        return False
    return bool(operator.op() == dist.ReduceOp.AVG.value) if hasattr(operator, "op") else None


for _name, _place in _COPIED.items():
    scratch("cpu", _name)(_rule(_name, _place))
scratch("cpu", *_UNMODELLED)(lambda *_, **__: UNKNOWN)

AGREED = "every rank is assumed to send the same values"

_UNASSUMED = ("c10d::broadcast_", "c10d::scatter_", "c10d::alltoall_base_")
"""Collectives that give every rank the values of one rank, which only that rank knows, and one for counts of tokens,
which routers are assumed to balance."""

_ROOT_AT = {"c10d::broadcast_": 2, "c10d::gather_": 3, "c10d::scatter_": 3}
"""The argument with the rank at which alone the values are known."""


def agreed(
    name: str, args: tuple[Any, ...], rank: int, ranks: int, value: Callable[[Tensor], Tensor | None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each tensor that a collective fills with known counts, flags or bytes, and these.

    ``value`` returns a tensor's values; those of weights and losses do not steer a program. The kind of a reduction is
    not known here, but zeros give zeros for all (torch/csrc/distributed/c10d/Ops.cpp).
    """
    if name in _ROOT_AT and args[_ROOT_AT[name]] != rank:
        return
    pairs: list[tuple[Tensor, Tensor]] = []
    match name.removeprefix("c10d::"):
        case "allgather_" | "gather_":
            pairs = [(filled, sent) for row, sent in zip(args[0], args[1]) for filled in row]
        case "_allgather_base_" | "alltoall_base_":
            pairs = [(args[0], args[1])]
        case "scatter_":
            pairs = [(filled, row[rank]) for filled, row in zip(args[0], args[1])]
        case "alltoall_":
            pairs = [(filled, args[1][rank]) for filled in args[0]]
        case "broadcast_" | "allreduce_" | "allreduce_coalesced_":
            pairs = [(tensor, tensor) for tensor in args[0]]
    for filled, sent in pairs:
        values = None if sent.is_floating_point() or sent.is_complex() else value(sent)
        if values is None or (name.startswith("c10d::allreduce") and values.any()):
            continue
        if name == "c10d::alltoall_base_":
            yield filled, exchanged(values, ranks, rank)
        else:
            times = filled.numel() // max(1, values.numel())
            yield filled, values.flatten().repeat(times).view(filled.shape)


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

    def _is_below_autograd(self, args: tuple[Any, ...]) -> bool:
        return True

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
