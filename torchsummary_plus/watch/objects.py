"""The objects of some classes among all that the garbage collector knows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, groupby, starmap
from typing import Any

import torch
from torch import nn

from ..trace.passes import no_collection

WATCHED = frozenset((torch.Tensor, nn.Module, torch.optim.Optimizer))


def watched_objects(generation: int | None = None) -> list[Any]:
    """Return the tensors, modules and optimizers of a generation; None for all generations."""
    return objects_of(WATCHED, generation)


def objects_of(classes: frozenset[type], generation: int | None = None) -> list[Any]:
    """Return the instances of some classes and their subclasses in a generation; None for all generations.

    No other thread runs while all objects are in a list: a tuple that one is building could not grow while the list
    refers to it ("bad argument to internal function"). So each pass is one call in C, without a collection.
    """
    with no_collection():
        types = set(map(type, _objects(generation)))
        passed_over: dict[type, Any] = {kind: () for kind in types if classes.isdisjoint(kind.__mro__)}
        groups: Iterator[Any] = starmap(passed_over.get, groupby(_objects(generation), type))
        picked = list(chain.from_iterable(groups))
    chosen = [value for value in picked if not classes.isdisjoint(type(value).__mro__)]
    picked.clear()  # The list may contain itself, which would keep all objects alive until a collection.
    return chosen


def _objects(generation: int | None) -> Iterator[Any]:
    """Return an iterator over all objects, listed on first use, and a final None: ``groupby`` keeps the last item."""
    return chain.from_iterable(chain(map(gc.get_objects, (generation,)), ((None,),)))
