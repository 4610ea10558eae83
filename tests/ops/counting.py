"""Helpers for tests of multiply-adds: a mode that checks every operator, torch's own counter, small tensors."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torchsummary_plus.live import compat
from torchsummary_plus.ops.macs import multiply_adds
from torchsummary_plus.table.forward import _has_no_kernel

Run = Callable[[], Any]
Context = Callable[[], AbstractContextManager[Any]]

CONTEXTS: dict[str, Context] = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
"""In the last, torch shows modes composite operators such as einsum whole, and a pass decomposes them."""


class Count(TorchDispatchMode):
    """Sums the multiply-adds of all that runs inside, and names what nobody knows."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.unknown: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_inference_mode_enabled() and isinstance(func, torch._ops.OpOverload):
            composite = compat.composite_kernel(func)
            if composite is not None and _has_no_kernel(func, args):
                with self:
                    return composite(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        macs = multiply_adds(func, args, kwargs or {}, out)
        assert macs is None or type(macs) is int
        self.seen[str(func)] += 1
        self.total += macs or 0
        self.unknown[str(func)] += macs is None
        return out


def count(run: Run, context: Context = torch.no_grad) -> int:
    """Multiply-adds of ``run()``, in which everything must be known."""
    with context(), Count() as mode:
        run()
    assert not +mode.unknown
    return mode.total


def unknown(run: Run, context: Context = torch.no_grad) -> set[str]:
    with context(), Count() as mode:
        run()
    return set(+mode.unknown)


def torchs_own(run: Run) -> int:
    with torch.enable_grad(), FlopCounterMode(display=False) as mode:
        run()
    return mode.get_total_flops() // 2


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape).to(dtype)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
