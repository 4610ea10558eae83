"""Memory of single CPU kernels by torch's profiler, against their trials on zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function
from torch.utils._pytree import tree_map_only

from tests.truth.memory_truth import cpu_changes, highest
from torchsummary_plus.live.fakes import CPU, fake_like
from torchsummary_plus.ops.scratch.registry import Alloc, Free, Result
from torchsummary_plus.step.workspace import Workspaces

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


def predicted(
    operator: Any,
    args: tuple[Any, ...],
    out: Any,
    kwargs: Mapping[str, Any] | None = None,
    workspaces: Workspaces | None = None,
) -> int:
    """The most bytes that the kernel holds in its trial, for which the tensors are fakes."""
    fakes: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        return fakes.setdefault(id(tensor), fake_like(tensor, CPU))

    workspaces = workspaces or Workspaces("cpu")
    args, named, out = tree_map_only(Tensor, fake, (args, dict(kwargs or {}), out))
    live = most = 0
    buffers: list[int] = []
    with torch.no_grad():
        course = workspaces.scratch(operator.name(), args, named, out)
    for step in course:
        if isinstance(step, Alloc):
            buffers.append(step.nbytes)
            live += step.nbytes
        elif isinstance(step, Free):
            live -= buffers[step.buffer]
        elif isinstance(step, Result):
            live += step.nbytes or 0
        most = max(most, live)
    return most


def described(args: Iterable[Any]) -> str:
    """Arguments in short: of tensors shape, strides and dtype."""
    known = ((tuple(a.shape), a.stride(), a.dtype) if isinstance(a, Tensor) else a for a in args)
    return str(tuple(known))
