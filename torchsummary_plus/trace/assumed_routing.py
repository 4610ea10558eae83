"""Balanced routing: the experts that tokens are assumed to choose where real weights would decide."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BALANCED = "the router is assumed to send every expert the same number of tokens, on every rank"
"""The assumption about a router's choice."""
CROWDED = "the router is assumed to send every token to the same experts"
"""The opposite assumption, for the range of an estimate."""

aten = torch.ops.aten


@dataclass
class Routers:
    """Assumed choices of routers, recognised by their number of scores: that of the experts.

    In a world of ranks, it may be the number on all ranks together. With ``crowded``, all tokens choose the same
    experts; otherwise they are spread evenly.
    """

    counts: Collection[int]
    ranks: int = 1
    crowded: bool = False
    were_asked: bool = False
    """Whether any choice was made."""

    def choice(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return the indices that an operator chooses; None if it does not choose among experts.

        There are as many experts as scores, on this rank or on all of them.

        >>> scores = torch.empty(4, 8, device="meta")
        >>> Routers({8}).choice(aten.topk.default, (scores, 2), {}).tolist()
        [[0, 1], [2, 3], [4, 5], [6, 7]]
        >>> Routers({8}, crowded=True).choice(aten.argmax.default, (scores, -1), {}).tolist()
        [0, 0, 0, 0]
        >>> Routers({6}).choice(aten.argmax.default, (scores, -1), {})
        """
        how_many = _CHOICES.get(id(func))
        if how_many is None:
            return None
        named: dict[str, Any] = dict(zip([argument.name for argument in func._schema.arguments], args)) | kwargs
        scores, axis = named["self"], named.get("dim", None if how_many == ONE else -1)
        if axis is None or not scores.dim():
            return None
        number = scores.shape[axis]
        if number not in self.counts:
            shares = any(number % count == 0 and number <= count * self.ranks for count in self.counts)
            alone = not self.counts and number > 1 and number % self.ranks == 0
            if self.ranks == 1 or not (shares or alone):
                return None
        self.were_asked = True
        each = number if how_many == ALL else int(named.get(how_many, 1))
        indices = self._spread(scores, axis, each, 1 if how_many == ALL else each)
        return indices.squeeze(axis) if how_many == ONE and not named.get("keepdim", False) else indices

    def _spread(self, scores: Tensor, axis: int, each: int, step: int) -> Tensor:
        """Return ``each`` consecutive experts for each token, starting ``step`` further from token to token."""
        rest = [size for place, size in enumerate(scores.shape) if place != axis % scores.dim()]
        tokens = torch.arange(torch.Size(rest).numel())[:, None]
        first = torch.zeros_like(tokens) if self.crowded else tokens * step
        return ((first + torch.arange(each)) % scores.shape[axis]).view(*rest, each).movedim(-1, axis).contiguous()


ONE, ALL = "one", "all in order"

_CHOICES = {
    id(aten.topk.default): "k",
    id(aten.argmax.default): ONE,
    id(aten.max.dim): ONE,
    id(aten.multinomial.default): "num_samples",
    id(aten.sort.default): ALL,
    id(aten.sort.stable): ALL,
    id(aten.argsort.default): ALL,
    id(aten.argsort.stable): ALL,
}
"""Operators by which routers choose, by identity since operators are slow to hash: one, all, or as an argument says."""
