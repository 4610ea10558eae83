"""Operators that create sparse tensors, which have no fakes: torch's kernels may crash the process on one."""

from __future__ import annotations

import torch

aten = torch.ops.aten

MAKE_SPARSE = {
    id(getattr(packet, overload))
    for packet in (
        *(aten._sparse_coo_tensor_with_dims_and_tensors, aten._sparse_coo_tensor_with_dims),
        *(aten._sparse_compressed_tensor_unsafe, aten.sparse_compressed_tensor),
        *(aten._to_sparse, aten._to_sparse_csr, aten._to_sparse_csc),
        *(aten._to_sparse_bsr, aten._to_sparse_bsc),
    )
    for overload in packet.overloads()
}
"""By identity: operators hash slowly, and every one of a pass is looked up."""
