"""CUDA: workspaces of cuBLAS, of powers and of the CTC loss."""

from __future__ import annotations

import os
import re
from typing import Any

from ....data.capability import Capability
from ....data.units import MIB
from ..registry import lasting, scratch

HANDLES = "aten/src/ATen/cuda/CublasHandlePool.cpp; torch 2.13 caches workspaces, as 2.11 does"
PRODUCTS = (
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "_int_mm", "_scaled_mm"),
    *("_addmm_activation", "_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    *("_euclidean_dist", "affine_grid_generator"),
)
"""Operators that request a cuBLAS handle, which comes with a workspace."""


def workspace_bytes(capability: Capability) -> int:
    """Return cuBLAS's workspace: ``CUBLAS_WORKSPACE_CONFIG`` (":KiB:count...") if set, else 32 MiB from Hopper on.

    Before Hopper the default is ``:4096:2:16:8``. Source: ``parseChosenWorkspaceSize`` in CublasHandlePool.cpp.

    >>> workspace_bytes((8, 0)), workspace_bytes((9, 0))
    (8519680, 33554432)
    """
    parts = re.findall(r":([0-9]+):([0-9]+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if parts:
        return sum(1024 * int(size) * int(count) for size, count in parts)
    return 32 * MIB if capability[0] >= 9 else 1024 * (2 * 4096 + 8 * 16)


@lasting("cuda", *(f"aten::{name}" for name in PRODUCTS), source=HANDLES, band=0.0, by_capability=True)
def cublas(capability: Capability, out: Any, *_: Any, **__: Any) -> tuple[tuple[str, int], ...]:
    """One workspace per thread and stream that multiply, since each thread has its own handle; cublasLt shares it."""
    return (("cublas", workspace_bytes(capability)),)


LENGTH_BYTES = 8


@scratch("cuda", "aten::pow.Scalar", source="aten/src/ATen/native/Pow.cpp: the base as a tensor", band=0.0)
def power(out: Any, *_: Any) -> int:
    """The base as a tensor."""
    return LENGTH_BYTES


@scratch(
    *("cuda", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor"),
    source="aten/src/ATen/native/cuda/LossCTC.cu, ctc_loss_backward_gpu_template",
    band=0.01,
)
def ctc_backward(
    out: Any, grad: Any, scores: Any, targets: Any, inputs: Any, lengths: Any, loss: Any, table: Any, blank: int,
    zero_infinity: bool = False,
) -> int:  # fmt: skip
    """The forward's table again, lengths and offsets; for large problems also the sums over every other column."""
    steps, batch, labels = scores.shape
    number = scores.element_size()
    held: int = table.numel() * number + 3 * batch * LENGTH_BYTES
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 <= 450:
        return held
    blanks: int = batch * steps * (table.shape[2] // 2 + 1) * number
    highest: int = batch * steps * number
    infinite: int = scores.numel() * number if zero_infinity else 0
    return held + max(2 * blanks + 2 * highest, infinite)
