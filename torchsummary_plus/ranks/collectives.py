"""Collectives: gloo's scratch memory on CPUs, and the values that are known if all ranks contribute equally.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp. An all-gather runs on a flat copy of its outputs
(``AsyncAllgatherWork``); a reduce-scatter is an all-reduce of a clone of its input
(``reduce_scatter_tensor_coalesced``). In-place sums, sends and ``all_to_all_single`` need nothing. An average divides
the sum by the number of ranks, for which torch makes two tensors of one element. NCCL works on the tensors themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ..ops.scratch.registry import UNKNOWN, AtMost, Course, Workspace, at_peak, scratch
from ..trace.kernels import tensors_of

SOURCE = "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"

_COPIED: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (lambda out, outputs, *_: outputs, (
        *("c10d::_allgather_base_", "c10d::allgather_", "c10d::allgather_into_tensor_coalesced_"),
    )),
    (lambda out, *_: out, ("_c10d_functional::all_gather_into_tensor",)),
    (lambda out, outputs, inputs, *_: inputs, (
        *("c10d::_reduce_scatter_base_", "c10d::reduce_scatter_tensor_coalesced_"),
    )),
    (lambda out, inputs, *_: inputs, ("_c10d_functional::reduce_scatter_tensor",)),
    (lambda out, outputs, inputs, *_: max(tensors_of((inputs,)), key=_nbytes), ("c10d::reduce_scatter_",)),
    (lambda *_: (), (
        *("c10d::allreduce_", "c10d::reduce_", "c10d::allreduce_coalesced_", "c10d::alltoall_base_"),
        *("_c10d_functional::all_reduce", "_c10d_functional::all_reduce_", "_c10d_functional::all_to_all_single"),
    )),
)  # fmt: skip
"""Which of its result and arguments a collective copies."""

_UNMODELLED = (
    *("c10d::alltoall_", "c10d::gather_", "c10d::scatter_", "_dtensor::shard_dim_alltoall"),
    *(f"_c10d_functional::{name}_coalesced" for name in ("all_gather_into_tensor", "reduce_scatter_tensor")),
)


def _nbytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of((tensors,)))


def _rule(copied: Callable[..., Any]) -> Callable[..., Course | AtMost]:
    """Return a rule: a copy, and for an average the number of ranks, as an int64 and in the tensors' dtype.

    Before torch 2.10, Python cannot tell an average from a sum.
    """

    def formula(out: Any, *args: Any, **_: Any) -> Course | AtMost:
        nbytes, kinds = _nbytes(copied(out, *args)), {_is_average(value) for value in args}
        if not kinds - {False}:
            return at_peak(nbytes)
        divisor = torch.int64.itemsize + tensors_of(args)[0].element_size()
        return at_peak(nbytes + divisor) if True in kinds else AtMost(divisor, (Workspace(nbytes),))

    return formula


def _is_average(operator: Any) -> bool | None:
    """Whether an argument asks for an average; None if that cannot be read."""
    if isinstance(operator, str):
        return operator.lower() == "avg"
    if not isinstance(operator, torch.ScriptObject) or not str(operator._type()).endswith(".ReduceOp"):
        return False
    return bool(operator.op() == dist.ReduceOp.AVG.value) if hasattr(operator, "op") else None


for _copied, _names in _COPIED:
    scratch("cpu", *_names, source=SOURCE)(_rule(_copied))
scratch("cpu", *_UNMODELLED, source=f"{SOURCE}: not measured")(lambda *_, **__: UNKNOWN)

AGREED = "every rank is assumed to send the same values"

FROM_ONE = ("c10d::broadcast_", "c10d::scatter_")
"""Collectives that give every rank the values of one rank, which only that rank knows."""

_ROOT_AT = {"c10d::broadcast_": 2, "c10d::gather_": 3, "c10d::scatter_": 3}
"""The argument with the rank at which alone the values are known."""


def agreed(
    name: str, args: tuple[Any, ...], rank: int, value: Callable[[Tensor], Tensor | None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each tensor that a collective fills with known values, and these; ``value`` returns a tensor's values.

    The kind of a reduction is not known here, but zeros give zeros for all (torch/csrc/distributed/c10d/Ops.cpp).
    """
    for filled, sent in _filled(name, args, rank):
        values = value(sent)
        if values is not None and not (name.startswith("c10d::allreduce") and values.any()):
            times = filled.numel() // max(1, values.numel())
            yield filled, values.flatten().repeat(times).view(filled.shape)


def _filled(name: str, args: tuple[Any, ...], rank: int) -> list[tuple[Tensor, Tensor]]:
    """Return each tensor that a collective fills, with the one whose values it gets, repeated for every rank."""
    if name in _ROOT_AT and args[_ROOT_AT[name]] != rank:
        return []
    match name.removeprefix("c10d::"):
        case "allgather_" | "gather_":
            return [(filled, sent) for row, sent in zip(args[0], args[1]) for filled in row]
        case "_allgather_base_":
            return [(args[0], args[1])]
        case "scatter_":
            return [(filled, row[rank]) for filled, row in zip(args[0], args[1])]
        case "alltoall_":
            return [(filled, args[1][rank]) for filled in args[0]]
        case "broadcast_" | "allreduce_" | "allreduce_coalesced_":
            return [(tensor, tensor) for tensor in args[0]]
    return []
