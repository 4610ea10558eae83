"""Scratch memory of selecting by masks: positions as integers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ....live.masks import count_true
from ..registry import ALL_RESULTS, AtMost, Phase, scratch
from .copies import copied, elements, nbytes

INDEX_BYTES = 8
GRAIN = 32768
"""Elements above which a loop is split among threads: at::internal::GRAIN_SIZE."""

EXPANDED = "aten/src/ATen/native/IndexingUtils.h, expandTensors: a mask becomes its nonzero()"


def is_mask(index: Any) -> bool:
    """Whether one of the indices is a mask."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _masks(indices: Sequence[Any]) -> list[Any]:
    return list(filter(is_mask, indices))


def _rank(masks: Sequence[Any]) -> int:
    return sum(mask.dim() for mask in masks)


def _counted(masks: Sequence[Any]) -> int | None:
    """Return how many positions masks select; None if unknown."""
    known = [count for count in map(count_true, masks) if count is not None]
    return max(known, default=None)


def _place(x: Any, indices: Sequence[Any]) -> int:
    """Return how many axes follow that of the selected positions: the first axis if the indices are not adjacent."""
    ranks = [index.dim() if _masks([index]) else int(index is not None) for index in indices]
    given = [number for number, index in enumerate(indices) if index is not None]
    before = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    return int(x.dim()) - before - sum(ranks)


def _told(tensor: Any, after: int) -> int | None:
    """Return the size of the axis followed by ``after`` others; None if missing or 1, which may be broadcast."""
    size = int(tensor.shape[-1 - after]) if tensor.dim() > after else 1
    return None if size == 1 else size


@scratch("cpu", "aten::index.Tensor", source=EXPANDED, band=0.0)
def _index(out: Any, x: Any, indices: Sequence[Any]) -> int:
    masks = _masks(indices)
    return INDEX_BYTES * masked_rows(out, x, indices) * _rank(masks) if masks else 0


def masked_rows(out: Any, x: Any, indices: Sequence[Any]) -> int:
    """Return how many positions each mask selects, from its values or from the result's shape."""
    rows = _counted(_masks(indices))
    return int(out.shape[-1 - _place(x, indices)]) if rows is None else rows


@scratch("cpu", "aten::index_put", "aten::index_put_", source=EXPANDED, band=0.0)
def _index_put(out: Any, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> int | AtMost:
    """As many positions as the masks select, if known, or as there are values; else an upper bound."""
    masks = _masks(indices)
    if not masks or (not accumulate and fills(indices, values)):
        return 0
    rows, each = written_rows(x, indices, values), INDEX_BYTES * _rank(masks)
    return each * rows if rows is not None else AtMost(each * most_rows(indices))


def written_rows(x: Any, indices: Sequence[Any], values: Any) -> int | None:
    """Return how many positions each mask selects, from its values or from what is written; None if unknown."""
    rows = _counted(_masks(indices))
    return _told(values, _place(x, indices)) if rows is None else rows


def most_rows(indices: Sequence[Any]) -> int:
    """Return the most positions that one of the masks can select."""
    return int(max(mask.numel() for mask in _masks(indices)))


@scratch(
    *("cpu", "aten::masked_scatter", "aten::masked_scatter_"),
    source="aten/src/ATen/native/TensorAdvancedIndexing.cpp",
    band=0.0,
)
def _masked_scatter(out: Any, x: Any, mask: Any, source: Any) -> int:
    return copied(source)


@scratch("cpu", "aten::masked_scatter_backward", source="aten/src/ATen/native/TensorAdvancedIndexing.cpp", band=0.25)
def _masked_scatter_backward(out: Any, grad: Any, mask: Any, sizes: Sequence[int]) -> tuple[Phase, ...]:
    """The selected gradients, assumed to be as many as the source's elements; fewer are padded with zeros."""
    count: int = prod(torch.broadcast_shapes(grad.shape, mask.shape))
    alone = _runs_alone(grad, mask, count)
    return Phase(0, INDEX_BYTES * (1 + count)), Phase(ALL_RESULTS, 0 if alone else 2 * INDEX_BYTES * count)


def fills(indices: Sequence[Any], values: Any) -> bool:
    """Whether one CPU value is written where one mask is set, which fills by the mask without positions.

    Source: aten/src/ATen/native/TensorAdvancedIndexingUtils.h, ``canDispatchToMaskedFill``.
    """
    masks = _masks(indices)
    alone = len(masks) == 1 and all(index is None or index is masks[0] for index in indices)
    return alone and elements(values) == 1 and values.device.type == "cpu"


def _runs_alone(x: Any, mask: Any, count: int) -> bool:
    """Whether a selection runs on one thread in one pass."""
    in_line = x.shape == mask.shape and x.is_contiguous() and mask.is_contiguous()
    return in_line and (torch.get_num_threads() == 1 or count < GRAIN)


@scratch("cpu", "aten::masked_select", source="aten/src/ATen/native/TensorAdvancedIndexing.cpp", band=0.0)
def _masked_select(out: Any, x: Any, mask: Any) -> int:
    """One integer per element to count them, freed once the result exists; two each to split the work."""
    count: int = prod(torch.broadcast_shapes(x.shape, mask.shape))
    if _runs_alone(x, mask, count):
        return max(0, int(INDEX_BYTES * (1 + count) - nbytes(out)))
    return 2 * INDEX_BYTES * count
