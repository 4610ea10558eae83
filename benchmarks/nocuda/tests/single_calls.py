"""What single calls allocate on the no-op runtime, and by their rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from torchsummary_plus.memory.gpus import find_gpu
from torchsummary_plus.ops.scratch.cuda.chips import Chip, chip_named
from torchsummary_plus.ops.scratch.registry import Alloc, Result
from torchsummary_plus.step.workspace import Workspaces


@cache
def chip() -> Chip:
    """Return the chip of the GPU that is stood in for."""
    return chip_named(find_gpu(torch.cuda.get_device_name()).name, torch.cuda.get_device_capability())


def changes(call: Callable[[], object]) -> list[int]:
    """Return the bytes that a call allocates and, below zero, frees."""
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    call()
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_completed": -1}
    return [signs[entry["action"]] * entry["size"] for entry in trace if entry["action"] in signs]


def allocated_by_rule(
    operator: Any, args: tuple[Any, ...], how: Mapping[str, bool] = MappingProxyType({}), out: Any = None
) -> list[int]:
    """Return the bytes that an operator's rules allocate once a workspace is kept, results included.

    ``out`` is given for operators without a meta kernel.
    """
    name, out = operator.name(), operator(*args, **how) if out is None else out
    results = out if isinstance(out, tuple) else (out,)
    rules = Workspaces("cuda", chip())
    reserved = rules.reserves(name, args, dict(how), out) or [None] * len(results)
    held = [result.nbytes if size is None else size for result, size in zip(results, reserved, strict=True)]
    rules.lasting(name, args, dict(how), out)
    steps = [step for step in rules.scratch(name, args, dict(how), out) if isinstance(step, (Result, Alloc))]
    ruled = {step.result for step in steps if isinstance(step, Result)}
    sizes = [size for place, size in enumerate(held) if place not in ruled]
    sizes += [held[step.result] if isinstance(step, Result) else step.nbytes for step in steps]
    assert not rules.unknown
    return [size for size in sizes if size]
