"""What the rules of losses share on all devices."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

MEAN = 1
"""``Reduction::Mean``; 0 is none, 2 sum."""


def pairs(x: Any, other: Any) -> int:
    """Return the number of pairs of elements, one tensor broadcast to the other."""
    return int(prod(torch.broadcast_shapes(x.shape, other.shape)))
