"""What a dispatch mode distorts, undone: operators run as they would without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .kernels import FakeKernels
from .passes import Pass
from .semantics_cuda import cuda_function
from .workspace import AMPERE, Capability

aten = torch.ops.aten


class StepKernels(FakeKernels):
    """Fake kernels that know of the autograd engine.

    Under a mode the engine adds gradients up out of place; without one it writes into a buffer that nobody else holds
    (torch/csrc/autograd/input_buffer.cpp, ``accumulate``).
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.watch: Pass | None = None
        self.born_in: dict[int, int] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch = self.watch
        if watch is None or not watch.in_engine:
            return super().__call__(func, args, kwargs)
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        if func is aten.add.Tensor and not kwargs and self._accumulates_in_place(args, number):
            func = aten.add_.Tensor
        watch.in_engine = False
        try:
            out = super().__call__(func, args, kwargs)
        finally:
            watch.in_engine = True
        if isinstance(out, torch.Tensor):
            self.born_in[out.untyped_storage()._cdata] = number
        return out

    def _accumulates_in_place(self, args: tuple[Any, ...], node: int) -> bool:
        """Whether this addition is the engine's own, and nobody but the engine holds the first summand."""
        held, added = args[0], args[1]
        if torch.is_grad_enabled() or not isinstance(added, torch.Tensor):
            return False
        storage = held.untyped_storage()
        counts = held._use_count(), torch._C._storage_Use_Count(storage._cdata)
        return (
            counts == (4, 2)
            and self.born_in.get(storage._cdata) != node
            and (held.shape, held.dtype) == (added.shape, added.dtype)
            and torch._prims_common.is_non_overlapping_and_dense_or_false(held)
        )


class StepFunctions(TorchFunctionMode):
    """Composite functions as they run without a mode. Python that runs inside the engine sees the true device."""

    def __init__(self, watch: Pass, device: torch.device, capability: Capability = AMPERE) -> None:
        super().__init__()
        self.watch = watch
        self.on_cuda = device.type == "cuda"
        self.capability = capability

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outer, self.watch.in_engine = self.watch.in_engine, False
        try:
            if func is torch.nn.functional.linear:
                return _linear(*args, **(kwargs or {}))
            kernel = cuda_function(func, self.capability) if self.on_cuda else None
            return (kernel or func)(*args, **(kwargs or {}))
        finally:
            self.watch.in_engine = outer


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``linear`` adds the bias in place where its input is not flat; under a mode it takes the out-of-place branch."""
    flat = input.dim() == 2 or (input.dim() >= 3 and input.is_contiguous())
    if bias is None or flat:
        return torch._C._nn.linear(input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)


@contextmanager
def engine_watched(
    watch: Pass, device: torch.device, ledger_phase: Any, capability: Capability = AMPERE
) -> Iterator[None]:
    """While it holds, a backward runs in this thread, under the function mode, with ``watch.in_engine`` set."""
    engine: Any = torch.autograd
    run = engine._engine_run_backward

    def watched(*args: Any, **kwargs: Any) -> Any:
        outer, watch.in_engine = watch.in_engine, True
        try:
            with (
                ledger_phase("backward"),
                torch.autograd.set_multithreading_enabled(False),
                StepFunctions(watch, device, capability),
            ):
                return run(*args, **kwargs)
        finally:
            watch.in_engine = outer

    engine._engine_run_backward = watched
    try:
        yield
    finally:
        engine._engine_run_backward = run
