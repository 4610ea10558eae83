"""Masks among indices, and how many of their elements are true, if a pass knows: the size of a selection."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

_COUNTS: MutableMapping[torch.Tensor, tuple[int, int]] = WeakTensorKeyDictionary()
"""By mask: the counted version of its data, and its number of true elements."""


def note_true(mask: torch.Tensor, count: int) -> None:
    """Remember how many elements of a mask are true until it is written to."""
    _COUNTS[mask] = mask._version, count


def count_true(mask: torch.Tensor) -> int | None:
    """Return how many elements of a mask are true; None if unknown.

    >>> mask = torch.tensor([True, False])
    >>> note_true(mask, 1)
    >>> count_true(mask), count_true(~mask)
    (1, None)
    """
    version, count = _COUNTS.get(mask, (-1, 0))
    return count if version == mask._version else None


def is_mask(index: Any) -> bool:
    """Whether an index is a mask."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def masks_of(indices: Sequence[Any]) -> list[Any]:
    """Return those of the indices that are masks."""
    return list(filter(is_mask, indices))
