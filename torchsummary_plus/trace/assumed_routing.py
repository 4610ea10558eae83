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
        choosing = _CHOICES.get(id(func))
        if choosing is None:
            return None
        named: dict[str, Any] = dict(zip([argument.name for argument in func._schema.arguments], args)) | kwargs
        scores, axis = named["self"], named.get("dim", choosing.axis)
        if axis is None or not scores.dim():
            return None
        number = scores.shape[axis]
        if number not in self.counts:
            shares = any(number % count == 0 and number <= count * self.ranks for count in self.counts)
            alone = not self.counts and number > 1 and number % self.ranks == 0
            if self.ranks == 1 or not (shares or alone):
                return None
        self.were_asked = True
        if choosing.number is None:
            indices = self._spread(scores, axis, number, 1)
        else:
            each = int(named.get(choosing.number, 1))
            indices = self._spread(scores, axis, each, each)
        return indices.squeeze(axis) if choosing.drops_axis and not named.get("keepdim", False) else indices

    def _spread(self, scores: Tensor, axis: int, each: int, step: int) -> Tensor:
        """Return ``each`` consecutive experts for each token, starting ``step`` further from token to token."""
        rest = [size for place, size in enumerate(scores.shape) if place != axis % scores.dim()]
        tokens = torch.arange(torch.Size(rest).numel())[:, None]
        first = torch.zeros_like(tokens) if self.crowded else tokens * step
        return ((first + torch.arange(each)) % scores.shape[axis]).view(*rest, each).movedim(-1, axis).contiguous()


@dataclass(frozen=True)
class _Choice:
    """An operator that chooses: its argument for how many, "" for one and None for an order of all."""

    number: str | None
    axis: int | None = -1
    drops_axis: bool = False


_CHOICES = {
    id(aten.topk.default): _Choice("k"),
    id(aten.argmax.default): _Choice("", None, drops_axis=True),
    id(aten.max.dim): _Choice("", None, drops_axis=True),
    id(aten.multinomial.default): _Choice("num_samples"),
    id(aten.sort.default): _Choice(None),
    id(aten.sort.stable): _Choice(None),
    id(aten.argsort.default): _Choice(None),
    id(aten.argsort.stable): _Choice(None),
}
"""Operators by which routers choose, by identity: operators are slow to hash."""


def with_choice(out: Any, indices: Tensor) -> Any:
    """Return an operator's result with its indices replaced."""
    return indices if isinstance(out, Tensor) else (out[0], indices)
