"""Memory of single CPU kernels by torch's profiler, against their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

from tests.truth.memory_truth import cpu_changes, highest
from torchsummary_plus.live.versions import since
from torchsummary_plus.ops.scratch.registry import RESERVES, SCRATCH, Alloc, Course, Free, Phase, Result
from torchsummary_plus.step import kernel_trials
from torchsummary_plus.step.workspace import HALF_FROM, Workspaces

aten: Any = torch.ops.aten


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


MARK = "call "


def measured(runs: Sequence[Callable[[], Any]]) -> list[tuple[int, Any]]:
    """For each call the most bytes that it holds above those that were there before, and its result."""
    results: list[Any] = [run() for run in runs]
    results.clear()

    def run_all() -> None:
        for number, run in enumerate(runs):
            with record_function(f"{MARK}{number}"):
                results.append(run())

    deltas: list[list[int]] = [[] for _ in runs]
    for change in cpu_changes(run_all):
        if change.names and change.names[0].startswith(MARK):
            deltas[int(change.names[0][len(MARK) :])].append(change.nbytes)
    return [(highest(own)[0], result) for own, result in zip(deltas, results)]


class OnlyQueries(TorchDispatchMode):
    """Forbids operators: a rule reads shapes and strides, because the tensors of an estimate are fakes.

    It may compute with tensors of its own on meta.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = tensors([*args, *(kwargs or {}).values()])
        assert all(tensor.is_meta for tensor in result), f"the rule calls {func}"
        return func(*args, **(kwargs or {}))


def predicted(
    operator: Any,
    args: tuple[Any, ...],
    out: Any,
    kwargs: Mapping[str, Any] | None = None,
    workspaces: Workspaces | None = None,
) -> int:
    """The most bytes that the rules say, as the ledger records them: results phase by phase, and the scratch beside."""
    workspaces, name, kwargs = workspaces or Workspaces("cpu"), operator.name(), dict(kwargs or {})
    inputs = {t.untyped_storage().data_ptr() for t in tensors(list(args))}
    with OnlyQueries():
        sizes = iter(workspaces.reserves(name, args, kwargs, out))
    results = []
    for tensor in tensors(out):
        nbytes = next(sizes, None)
        own = tensor.numel() * tensor.element_size() if nbytes is None else nbytes
        results.append(0 if tensor.untyped_storage().data_ptr() in inputs else own)
    with mock.patch.object(kernel_trials, "ALLOWANCE", -1), OnlyQueries():  # Nothing is tried on zeros.
        phases = workspaces.scratch(name, args, kwargs, out)
    if any(isinstance(step, Phase) for step in phases):
        beside = (phase.nbytes + sum(nbytes for _, nbytes in phase.blocks) for phase in phases)
        return max(sum(results[: phase.results]) + nbytes for phase, nbytes in zip(phases, beside))
    return peak_of(phases, results)


def peak_of(course: Course, results: Sequence[int]) -> int:
    """The most bytes that a course holds at once; results that it does not name are allocated first."""
    named = {step.result for step in course if isinstance(step, Result)}
    live = most = sum(nbytes for place, nbytes in enumerate(results) if place not in named)
    buffers: list[int] = []
    for step in course:
        if isinstance(step, Alloc):
            buffers.append(step.nbytes)
            live += step.nbytes
        elif isinstance(step, Free):
            live -= buffers[step.buffer]
        elif isinstance(step, Result):
            live += results[step.result]
        most = max(most, live)
    return most


Call = tuple[Any, ...]


def agree(calls: Iterable[Call]) -> None:
    """The operators have rules, which predict their memory to the byte, or are named on releases not measured."""
    calls = list(calls)
    wrong = []
    for call, (peak, out) in zip(calls, measured([partial(*call) for call in calls])):
        operator, *args = call
        assert {("cpu", operator.name())} & (SCRATCH.keys() | RESERVES.keys())
        workspaces = Workspaces("cpu")
        said = predicted(operator, tuple(args), out, workspaces=workspaces)
        is_named = operator.name() in workspaces.unknown and not since(HALF_FROM)
        if said != peak and not is_named:
            wrong.append(f"{operator.name()}{described(args)}: {said:,} instead of {peak:,}")
    assert not wrong, "\n".join(wrong)


def described(args: Iterable[Any]) -> str:
    """Arguments in short: of tensors shape, strides and dtype."""
    known = ((tuple(a.shape), a.stride(), a.dtype) if isinstance(a, Tensor) else a for a in args)
    return str(tuple(known))
