"""What a dispatch mode distorts, undone: operators run as they would without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .kernels import FakeKernels
from .passes import Pass

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

    def __init__(self, watch: Pass, device: torch.device) -> None:
        super().__init__()
        self.watch = watch
        self.on_cuda = device.type == "cuda"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outer, self.watch.in_engine = self.watch.in_engine, False
        try:
            if func is torch.nn.functional.linear:
                return _linear(*args, **(kwargs or {}))
            if self.on_cuda and func is torch.nn.functional.scaled_dot_product_attention:
                return _cuda_attention(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))
        finally:
            self.watch.in_engine = outer


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``linear`` adds the bias in place where its input is not flat; under a mode it takes the out-of-place branch."""
    flat = input.dim() == 2 or (input.dim() >= 3 and input.is_contiguous())
    if bias is None or flat:
        return torch._C._nn.linear(input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)


def _cuda_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The kernel a card takes: flash for half precision without a mask and heads of at most 256, else memory-efficient.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. A CPU build would take the math path for fake CUDA.
    """
    query, key, value, attn_mask = _autocast((query, key, value, attn_mask))
    width = query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None and width <= 256:
        if width % 8:
            query, key, value = (torch.nn.functional.pad(t, (0, -width % 8)) for t in (query, key, value))
        flash: Any = aten._scaled_dot_product_flash_attention
        padded: torch.Tensor = flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return padded if padded.shape[-1] == width else padded[..., :width]
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    efficient: Any = aten._scaled_dot_product_efficient_attention
    result: torch.Tensor = efficient(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]
    return result


def _autocast(tensors: tuple[torch.Tensor | None, ...]) -> Any:
    """Tensors in the dtype that autocast gives to attention on CUDA."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    dtype = torch.get_autocast_dtype("cuda")
    return tuple(t.to(dtype) if t is not None and t.dtype is torch.float32 else t for t in tensors)


@contextmanager
def engine_watched(watch: Pass, device: torch.device, ledger_phase: Any) -> Iterator[None]:
    """While it holds, a backward runs in this thread, under the function mode, with ``watch.in_engine`` set."""
    engine: Any = torch.autograd
    run = engine._engine_run_backward

    def watched(*args: Any, **kwargs: Any) -> Any:
        outer, watch.in_engine = watch.in_engine, True
        try:
            with (
                ledger_phase("backward"),
                torch.autograd.set_multithreading_enabled(False),
                StepFunctions(watch, device),
            ):
                return run(*args, **kwargs)
        finally:
            watch.in_engine = outer

    engine._engine_run_backward = watched
    try:
        yield
    finally:
        engine._engine_run_backward = run
