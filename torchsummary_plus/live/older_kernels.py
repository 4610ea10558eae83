"""Meta kernels of attention on CUDA, for releases before 2.6, which have them only in torch's own fake mode.

Source: ``_flash_attention_forward`` and ``_efficient_attention_forward`` in
aten/src/ATen/native/transformers/cuda/attention.cu of torch 2.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..data.rounding import round_up
from . import compat

_ROWS = 32
"""Multiple to which the memory-efficient kernel pads the rows of its log-sum-exp (``kAlignLSE``)."""


@contextmanager
def older_kernels() -> Iterator[None]:
    """Register meta kernels for attention where this release has none."""
    missing = {name: kernel for name, kernel in _KERNELS.items() if not compat.has_kernel(f"aten::{name}", "Meta")}
    if not missing:
        yield
        return
    with compat.library_scope("aten", "IMPL") as library:
        for name, kernel in missing.items():
            library.impl(name, kernel, "Meta")
        yield


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Return the output in token order, the log-sum-exp and the random state; no debug mask is returned."""
    out = torch.empty_like(query.transpose(1, 2)).transpose(1, 2)
    sums = query.new_empty(query.shape[:3], dtype=torch.float32)
    absent, state = query.new_empty(0), query.new_empty((), dtype=torch.long)
    return out, sums, None, None, query.shape[2], key.shape[2], state, torch.empty_like(state), absent


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Return the output in token order, the log-sum-exp if a gradient needs it, and the random state."""
    batch, heads, queries, _ = query.shape
    out = query.new_empty((batch, queries, heads, value.shape[3])).transpose(1, 2)
    rows = round_up(queries, _ROWS) if compute_log_sumexp else 0
    state = query.new_empty((), dtype=torch.long)
    return out, query.new_empty((batch, heads, rows), dtype=torch.float32), state, torch.empty_like(state)


_KERNELS: dict[str, Any] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_efficient_attention": _efficient,
}
