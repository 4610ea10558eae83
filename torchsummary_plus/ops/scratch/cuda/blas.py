"""CUDA: workspaces of cuBLAS, and of losses and embeddings in their gradients."""

from __future__ import annotations

import os
import re
from typing import Any

from ....data.capability import Capability
from ....data.units import MIB
from ..registry import Alloc, Course, Free, Result, lasting, scratch

HANDLES = "aten/src/ATen/cuda/CublasHandlePool.cpp; torch 2.13 caches workspaces, as 2.11 does"
PRODUCTS = (
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "_int_mm", "_scaled_mm"),
    *("_addmm_activation", "_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
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


SORTED_FROM = 3072
ROWS_PER_THREAD = 10


@scratch("cuda", "aten::pow.Scalar", source="aten/src/ATen/native/Pow.cpp: the base as a tensor", band=0.0)
def power(out: Any, *_: Any) -> int:
    """The base as a tensor."""
    return LENGTH_BYTES


@scratch(
    "cuda",
    "aten::embedding_dense_backward",
    source="aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu; CUB's radix sort of pairs",
    band=0.05,
)
def embedding_backward(
    out: Any, grad: Any, indices: Any, num_weights: int, padding_idx: int, scale_by_frequency: bool
) -> Course:
    """More than 3,072 indices are sorted; rows of the same index are summed in fp32, in parts of 10."""
    count: int = indices.numel()
    width: int = grad.shape[-1]
    copy = () if grad.is_contiguous() else (Alloc(grad.numel() * grad.element_size()),)
    if count <= SORTED_FROM and not scale_by_frequency:
        return (*copy, Result(0))
    each = Alloc(count * indices.element_size())
    segments = min(count, num_weights)
    parts = count // ROWS_PER_THREAD + segments
    sums = parts * width * max(4, grad.element_size())
    few = Alloc(segments * indices.element_size())
    first = len(copy)
    tiles = max(1, count // SORTED_AT_ONCE)
    sort = Alloc(2 * -(-each.nbytes // 256) * 256 + SORT_BYTES + 1024 * tiles)
    found = Alloc(LENGTH_BYTES)
    scan = Alloc(SCAN_BYTES)
    return (
        *(*copy, each, each, each, sort, Free(first + 3), Free(first + 2)),
        *((each,) if scale_by_frequency else ()),
        *(Result(0), each, found),
        *_briefly(first + 6 + scale_by_frequency, each, scan),
        *(few, few),
        *_briefly(first + 10 + scale_by_frequency, scan),
        *(found, Alloc(parts * indices.element_size()), Alloc(sums)),
    )


def _briefly(first: int, *buffers: Alloc) -> Course:
    """Return buffers that are freed immediately, numbered from ``first``."""
    return (*buffers, *(Free(first + place) for place in reversed(range(len(buffers)))))


SORT_BYTES, SORTED_AT_ONCE, SCAN_BYTES = 5631, 4096, 1279
"""Bytes of CUB's sorts and scans besides the pairs, for up to a few thousand pairs."""


LENGTH_BYTES = 8


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
