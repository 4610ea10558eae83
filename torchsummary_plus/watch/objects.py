"""The tensors, modules and optimizers among the objects that the garbage collector knows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, groupby, starmap
from typing import Any

import torch
from torch import nn

from ..trace.passes import no_collection

KINDS = frozenset((torch.Tensor, nn.Module, torch.optim.Optimizer))


def watched_objects(generation: int | None = None) -> list[Any]:
    """Return the tensors, modules and optimizers of a generation; None for all generations.

    No other thread runs while all objects are in a list: a tuple that one is building could not grow while the list
    refers to it ("bad argument to internal function"). So each pass is one call in C, without a collection.
    """
    with no_collection():
        types = set(map(type, _objects(generation)))
        passed_over: dict[type, Any] = {kind: () for kind in types if not _is_watched(kind)}
        groups: Iterator[Any] = starmap(passed_over.get, groupby(_objects(generation), type))
        picked = list(chain.from_iterable(groups))
    watched = [value for value in picked if _is_watched(type(value))]
    picked.clear()  # It may hold itself, and would keep all of them alive until a collection.
    return watched


def _objects(generation: int | None) -> Iterator[Any]:
    """All objects, asked for when the first is taken, and None last: a grouping keeps what it read last."""
    return chain.from_iterable(chain(map(gc.get_objects, (generation,)), ((None,),)))


def _is_watched(kind: type) -> bool:
    return not KINDS.isdisjoint(kind.__mro__)
