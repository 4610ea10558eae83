"""Embedding bags: their modes, as operators number them, and the library that sums them on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from .dtypes import HALVES

SUM, MEAN, MAX = range(3)


def takes_fbgemm(weight: Any, weights: Any, padding: int) -> bool:
    """Whether FBGEMM sums rows of ``weight`` on the CPU, which does not need each index's bag.

    It requires contiguous rows and per-sample weights. Source: ``is_fast_path`` in EmbeddingBag.cpp.
    """
    are_rows = weight.stride(1) == 1 and (weights is None or weights.stride(0) == 1)
    return weight.dtype in (torch.float32, *HALVES) and are_rows and padding < 0
