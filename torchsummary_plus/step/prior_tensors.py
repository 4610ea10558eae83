"""A tensor that exists before the steps."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PriorTensor(NamedTuple):
    """A tensor that exists before the steps, its kind, and its module's number.

    It counts only ``if_used`` where an installed package keeps it, as most packages keep more than a step needs.
    """

    tensor: Tensor
    kind: str
    owner: int
    if_used: bool = False
