"""Selections by masks of known values, as selections by indices: their sizes are then known too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..live.fakes import Fake

_INDEX, _SELECT = torch.ops.aten.index.Tensor, torch.ops.aten.masked_select.default


def unmasked(func: Any, args: tuple[Any, ...], run: Callable[..., Tensor]) -> tuple[Any, tuple[Any, ...]]:
    """Return an operator and its arguments with real masks replaced by indices; any other as it is.

    ``run`` runs an operator on fakes.

    >>> unmasked(_INDEX, (torch.zeros(3), [torch.tensor([True, False, True])]), torch.add)[1][1]
    [tensor([0, 2])]
    """
    if func is _INDEX:
        return func, (args[0], [place for index in args[1] for place in _indices(index)])
    if func is _SELECT and not isinstance(args[1], Fake):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        whole = args[0] if args[0].shape == shape else run(torch.ops.aten.expand.default, (args[0], shape), {})
        return _INDEX, (whole, [*args[1].expand(shape).nonzero().unbind(1)])
    return func, args


def _indices(index: Tensor | None) -> list[Tensor | None]:
    if index is None or isinstance(index, Fake) or index.dtype is not torch.bool:
        return [index]
    return [*index.nonzero().unbind(1)]
