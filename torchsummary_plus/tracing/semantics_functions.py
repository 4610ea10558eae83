"""What a function mode distorts, undone: composite functions run as they would without one, on the device asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .kernels import MASK
from .passes import Pass
from .semantics_cuda import cuda_function
from .workspace import AMPERE, Capability

_NODE = "_torchsummary_plus_node"


def note_node(error: BaseException) -> None:
    """Remember with an exception from which autograd node it came."""
    node = torch._C._current_autograd_node()
    if node is not None:
        error.__dict__.setdefault(_NODE, node._sequence_nr())


def failed_node(error: BaseException) -> int | None:
    """The sequence number of the autograd node that an exception came from."""
    return error.__dict__.get(_NODE)


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
            return (self._stand_in(func) or func)(*args, **(kwargs or {}))
        except Exception as error:
            note_node(error)
            raise
        finally:
            self.watch.in_engine = outer

    def _stand_in(self, func: Any) -> Callable[..., Any] | None:
        """How a function runs without a mode, on the device; None where there is no difference."""
        if func is _linear_kernel:
            return _linear
        if func in _FINITE:
            return partial(_finite, func)
        if self.on_cuda:
            return cuda_function(func, self.capability)
        return self._max_pool1d if func in _POOLS else None

    def _max_pool1d(self, input: torch.Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        """Where no gradient is needed the CPU kernel makes no indices; under a mode, torch takes the one that does.

        Source: aten/src/ATen/native/MaxPooling.cpp, ``max_pool1d``.
        """
        if return_indices or (torch.is_grad_enabled() and input.requires_grad):
            return _pool(input, *args, return_indices=return_indices, **kwargs)
        with self.watch.unheard():
            shape = _pool(input, *args, **kwargs).shape
        return input.new_empty(shape)


_linear_kernel = functional.linear
_pool: Any = functional.max_pool1d
_POOLS = {functional.max_pool1d, torch.max_pool1d}


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``linear`` adds the bias in place where its input is not flat; under a mode it takes the out-of-place branch."""
    flat = input.dim() == 2 or (input.dim() >= 3 and input.is_contiguous())
    if bias is None or flat:
        return _linear_kernel(input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)


_FINITE = {
    function: value
    for name, value in (("isfinite", True), ("isnan", False), ("isinf", False))
    for function in (getattr(torch, name), getattr(torch.Tensor, name))
}


def _finite(func: Any, input: torch.Tensor) -> torch.Tensor:
    """Values that nobody knows are finite: a step that goes wrong is not what its memory is asked about."""
    out: torch.Tensor = func(input)
    if out.numel() > MASK:
        return out
    return torch.full(out.shape, _FINITE[func], dtype=torch.bool, device=out.device)


@contextmanager
def functions_as_without_mode(device: torch.device) -> Iterator[None]:
    """While it holds, torch's own layers choose as they would under no mode, which the functions inside them never see.

    On the CPU attention and encoder layers leave their fast path where a function mode is on; and attention calls
    ``linear``.
    """
    overrides: Any = torch.overrides
    asked, linear = overrides.has_torch_function, functional.linear

    def has_torch_function(tensors: Any) -> bool:
        """Whether to leave the fast path: only for the one that makes nested tensors, which have no fakes."""
        is_encoder = sys._getframe(1).f_code is nn.TransformerEncoder.forward.__code__
        return (is_encoder or device.type != "cpu") and bool(asked(tensors))

    overrides.has_torch_function, functional.linear = has_torch_function, _linear
    try:
        yield
    finally:
        overrides.has_torch_function, functional.linear = asked, linear
