"""Balanced routing: the tokens that each expert gets and each rank sends, which otherwise only data decides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _bins(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the number of bins of a histogram; 0 if it depends on the data, or if elements have weights."""
    arguments: dict[str, Any] = dict(zip([argument.name for argument in func._schema.arguments], args)) | kwargs
    if func is aten.histc.default:
        return int(arguments.get("bins", 100))
    return 0 if arguments.get("weights") is not None else int(arguments.get("minlength", 0))


def balanced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return a histogram with all bins alike, the first ones by one more where they must; None for other operators.

    >>> balanced(aten.bincount.default, (torch.empty(10, dtype=torch.long, device="meta"),), {"minlength": 4})
    tensor([3, 3, 2, 2])
    """
    bins = _bins(func, args, kwargs) if func in COUNTS else 0
    if not bins:
        return None
    each, more = divmod(args[0].numel(), bins)
    counts = torch.full((bins,), each, dtype=torch.long)
    counts[:more] += 1
    return counts.to(args[0].dtype) if func is aten.histc.default else counts


COUNTS = (aten.bincount.default, aten.histc.default)
"""Operators by which routers count an expert's tokens."""


def exchanged(counts: Tensor, ranks: int, rank: int) -> Tensor:
    """Return what a rank receives if every rank sends these counts: its own part, from each of them.

    >>> exchanged(torch.tensor([3, 3, 2, 2]), ranks=2, rank=0)
    tensor([3, 3, 3, 3])
    """
    own = counts.chunk(ranks)[rank]
    return own.repeat(ranks, *[1] * (counts.dim() - 1))
