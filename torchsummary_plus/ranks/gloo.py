"""Scratch memory of gloo's collectives, the backend of processes on CPUs.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp. An all-gather runs on a flat copy of its outputs
(``AsyncAllgatherWork``); a reduce-scatter is an all-reduce of a clone of its input
(``reduce_scatter_tensor_coalesced``). In-place sums, sends and ``all_to_all_single`` need nothing. An average divides
the sum by the number of ranks, for which torch makes two tensors of one element. NCCL works on the tensors themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ..ops.scratch.registry import UNKNOWN, AtMost, Course, Workspace, at_peak, scratch
from ..trace.kernels import tensors_of

SOURCE = "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"


def _nbytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of((tensors,)))


@scratch("cpu", "c10d::_allgather_base_", source=f"{SOURCE}, AsyncAllgatherWork", band=0.0)
@scratch("cpu", "c10d::allgather_", source=f"{SOURCE}, AsyncAllgatherWork", band=0.0)
@scratch("cpu", "c10d::allgather_into_tensor_coalesced_", source=f"{SOURCE}, AsyncAllgatherWork", band=0.0)
def gathered(out: Any, outputs: Any, *_: Any, **__: Any) -> Course:
    """A flat copy of all outputs."""
    return at_peak(_nbytes(outputs))


@scratch("cpu", "_c10d_functional::all_gather_into_tensor", source=f"{SOURCE}, AsyncAllgatherWork", band=0.0)
def gathered_anew(out: Tensor, *_: Any, **__: Any) -> Course:
    """A flat copy of the outputs that the operator allocates."""
    return at_peak(_nbytes(out))


def _with_divisor(nbytes: int, tensors: Any, operators: tuple[Any, ...]) -> Course | AtMost:
    """Return the bytes with those of an average's number of ranks, as an int64 and in the tensors' dtype.

    Before torch 2.10, Python cannot tell an average from a sum.
    """
    kinds = {_is_average(operator) for operator in operators}
    if not kinds - {False}:
        return at_peak(nbytes)
    divisor = torch.int64.itemsize + next(iter(tensors_of((tensors,)))).element_size()
    return at_peak(nbytes + divisor) if True in kinds else AtMost(divisor, (Workspace(nbytes),))


def _is_average(operator: Any) -> bool | None:
    """Whether an argument asks for an average; None if that cannot be read."""
    if isinstance(operator, str):
        return operator.lower() == "avg"
    if not isinstance(operator, torch.ScriptObject) or not str(operator._type()).endswith(".ReduceOp"):
        return False
    return bool(operator.op() == dist.ReduceOp.AVG.value) if hasattr(operator, "op") else None


@scratch("cpu", "c10d::allreduce_", "c10d::reduce_", "c10d::allreduce_coalesced_", source=SOURCE, band=0.0)
@scratch("cpu", "_c10d_functional::all_reduce", "_c10d_functional::all_reduce_", source=SOURCE, band=0.0)
def summed(out: Any, tensors: Any, *operators: Any, **__: Any) -> Course | AtMost:
    """Nothing for a sum, which is made in place; an average's divisor."""
    return _with_divisor(0, tensors, operators)


@scratch("cpu", "c10d::_reduce_scatter_base_", source=f"{SOURCE}, reduce_scatter_tensor_coalesced", band=0.0)
@scratch("cpu", "c10d::reduce_scatter_tensor_coalesced_", source=f"{SOURCE}, the same", band=0.0)
def scattered(out: Any, outputs: Any, inputs: Any, *operators: Any, **__: Any) -> Course | AtMost:
    """A clone of the inputs, in which they are summed, and an average's divisor."""
    return _with_divisor(_nbytes(inputs), inputs, operators)


@scratch("cpu", "c10d::reduce_scatter_", source=f"{SOURCE}, reduce_scatter", band=0.0)
def scattered_in_parts(out: Any, outputs: Any, inputs: Any, *operators: Any, **__: Any) -> Course | AtMost:
    """A clone of one part of the inputs at a time, and an average's divisor."""
    return _with_divisor(max(map(_nbytes, tensors_of((inputs,)))), inputs, operators)


@scratch("cpu", "_c10d_functional::reduce_scatter_tensor", source=f"{SOURCE}, as c10d's", band=0.0)
def scattered_anew(out: Tensor, inputs: Tensor, *operators: Any, **__: Any) -> Course | AtMost:
    """A clone of the inputs of an operator that allocates its output, and an average's divisor."""
    return _with_divisor(_nbytes(inputs), inputs, operators)


@scratch("cpu", "c10d::alltoall_base_", source=f"{SOURCE}, AsyncAlltoallWork", band=0.0)
@scratch("cpu", "_c10d_functional::all_to_all_single", source=f"{SOURCE}, AsyncAlltoallWork", band=0.0)
def exchanged(out: Any, *_: Any, **__: Any) -> Course:
    """Nothing: tensors are sent and received as they are."""
    return ()


_UNMODELLED = (
    *("c10d::alltoall_", "c10d::gather_", "c10d::scatter_", "_dtensor::shard_dim_alltoall"),
    *(f"_c10d_functional::{name}_coalesced" for name in ("all_gather_into_tensor", "reduce_scatter_tensor")),
)


@scratch("cpu", *_UNMODELLED, source=f"{SOURCE}: not measured", band=0.0)
def not_measured(out: Any, *_: Any, **__: Any) -> AtMost:
    """Unmeasured copies: an estimate names the operator."""
    return UNKNOWN
