"""Operators on sparse gradients, the only sparse fakes: torch's kernels may crash the process on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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


def _coalesced(tensor: Tensor) -> Tensor:
    """Return a sparse meta tensor with one row, the fewest that coalescing leaves."""
    indices, values = tensor._indices()[:, :1].clone(), tensor._values()[:1].clone()
    return torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=True)


def _masked(dense: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """Return those rows of a dense meta tensor that a sparse one stores."""
    values = dense.new_empty(mask._values().shape)
    return torch.sparse_coo_tensor(mask._indices().clone(), values, dense.shape, is_coalesced=True)


def _bag_gradient(*args: Any) -> Tensor:
    """Return the gradient of a table of embeddings with a row for each index, also if it is the padding's."""
    return aten._embedding_bag_backward.default(*args[:_PADDING])  # type: ignore[no-any-return]


_PADDING = 11
"""Position of ``padding_idx`` among the arguments of ``_embedding_bag_backward``."""

_ON_META: dict[Any, Callable[..., Tensor]] = {
    aten._coalesce.default: _coalesced,
    aten.sparse_mask.default: _masked,
    aten._embedding_bag_backward.default: _bag_gradient,
}


def by_sparse_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on meta tensors, where torch lacks sparse kernels that optimizers call.

    Tensors written to in place keep their rows.
    """
    layouts = [arg.layout for arg in args if isinstance(arg, Tensor)]
    in_place = func._schema.name.endswith("_") and torch.sparse_coo in layouts
    if in_place and layouts[0] is torch.strided:
        return args[0]
    try:
        return _ON_META.get(func, func)(*args, **kwargs)
    except NotImplementedError:
        if not in_place:
            raise
        return args[0]
