"""Masks as indices: how many positions each selects, if a pass knows, and when a write needs none."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary


def _counted(masks: Sequence[Any]) -> int | None:
    """Return how many positions masks select; None if unknown."""
    known = [count for count in map(count_true, masks) if count is not None]
    return max(known, default=None)


def _axes_after(x: Any, indices: Sequence[Any]) -> int:
    """Return how many axes follow that of the selected positions: the first axis if the indices are not adjacent."""
    ranks = [index.dim() if masks_of([index]) else int(index is not None) for index in indices]
    indexed = [number for number, index in enumerate(indices) if index is not None]
    before = indexed[0] if indexed == list(range(indexed[0], indexed[-1] + 1)) else 0
    return int(x.dim()) - before - sum(ranks)


def masked_rows(out: Any, x: Any, indices: Sequence[Any]) -> int:
    """Return how many positions each mask selects, from its values or from the result's shape."""
    rows = _counted(masks_of(indices))
    return int(out.shape[-1 - _axes_after(x, indices)]) if rows is None else rows


def written_rows(x: Any, indices: Sequence[Any], values: Any) -> int | None:
    """Return how many positions each mask selects, from its values or from what is written; None if unknown."""
    rows, after = _counted(masks_of(indices)), _axes_after(x, indices)
    size = int(values.shape[-1 - after]) if values.dim() > after else 1
    return rows if rows is not None else size if size != 1 else None  # A size of 1 may be broadcast.


def fills(indices: Sequence[Any], values: Any) -> bool:
    """Whether one CPU value is written where one mask is set, which fills by the mask without positions.

    Source: aten/src/ATen/native/TensorAdvancedIndexingUtils.h, ``canDispatchToMaskedFill``.
    """
    masks = masks_of(indices)
    alone = len(masks) == 1 and all(index is None or index is masks[0] for index in indices)
    return alone and values.numel() == 1 and values.device.type == "cpu"


_COUNTS: MutableMapping[torch.Tensor, tuple[int, int]] = WeakTensorKeyDictionary()
"""By mask: the counted version of its data, and its number of true elements."""


def note_true(mask: torch.Tensor, count: int) -> None:
    """Remember how many elements of a mask are true until it is written to."""
    _COUNTS[mask] = mask._version, count


def count_true(mask: torch.Tensor) -> int | None:
    """Return how many elements of a mask are true; None if unknown."""
    version, count = _COUNTS.get(mask, (-1, 0))
    return count if version == mask._version else None


def is_mask(index: Any) -> bool:
    """Whether an index is a mask."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def masks_of(indices: Sequence[Any]) -> list[Any]:
    """Return those of the indices that are masks."""
    return list(filter(is_mask, indices))
