"""Kernels that do nothing, in place of those that g++ or Triton would compile, for a process that ends afterwards.

What generated code allocates becomes an ordinary operator, which a pass sees.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from . import compat as names


class Nothing:
    """A compiled kernel that does nothing, however it is launched."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    run = __call__

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def install() -> None:
    """Put these kernels in place, for good; no cache is read or written."""
    for kernel in names.KERNELS:
        kernel.set(lambda *_, **__: Nothing())
    names.COMPILER.set(lambda: "g++")
    names.CHECK_PROCESSOR.set(lambda *_: True)
    for device, empty in names.EMPTY:
        empty.set(partial(_empty, device))
    names.REINTERPRET.set(
        lambda x, size, stride, offset=0: torch.as_strided(x, size, stride, x.storage_offset() + offset)
    )
    names.CHECK_ALIGNMENT.set(lambda *_: None)
    names.CHECKED_INPUTS.set(lambda *_, **__: [])
    config = names.inductor_config
    config.force_disable_caches, config.compile_threads = True, 1
    names.functorch_config.enable_autograd_cache = False
    names.functorch_config.force_non_lazy_backward_lowering = True


def _empty(device: str, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)
