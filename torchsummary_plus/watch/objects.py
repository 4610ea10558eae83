"""The objects of some classes among all that the garbage collector knows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, compress, repeat
from typing import Any

import torch
from torch import nn

from ..data.collection import no_collection

WATCHED = frozenset((torch.Tensor, nn.Module, torch.optim.Optimizer))


def watched_objects(generation: int | None = None) -> list[Any]:
    """Return the tensors, modules and optimizers of a generation; None for all generations."""
    return objects_of(WATCHED, generation)


def objects_of(classes: frozenset[type], generation: int | None = None) -> list[Any]:
    """Return the instances of some classes and their subclasses in a generation; None for all generations.

    No other thread may run while a list refers to all objects: a tuple that it is building could not grow ("bad
    argument to internal function"). Therefore one call in C requests the list, reads it in two places side by side and
    drops it, without a collection: at the end, both places have asked ``lists`` for another one.
    """
    with no_collection():
        chosen = _derived(classes) if generation is None else _derived_in(classes, generation)
        lists = _twice(generation)
        objects = chain.from_iterable(chain(lists, ((None,),)))
        return list(compress(objects, map(chosen.__contains__, map(type, chain.from_iterable(lists)))))


def _derived(classes: frozenset[type]) -> set[type]:
    """Return classes and all their subclasses."""
    known = set(classes)
    waiting: list[type] = list(classes)
    while waiting:
        derived: set[type] = set(type.__subclasses__(waiting.pop())) - known
        known |= derived
        waiting.extend(derived)
    return known


def _derived_in(classes: frozenset[type], generation: int) -> set[type]:
    """Return the subclasses with instances in a generation; libraries define thousands, but few objects are young."""
    kinds = set(map(type, chain.from_iterable(map(gc.get_objects, (generation,)))))
    return {kind for kind in kinds if not classes.isdisjoint(kind.__mro__)}


def _twice(generation: int | None) -> Iterator[list[Any]]:
    """Yield a list of all objects twice; it is requested when first used."""
    return chain.from_iterable(map(repeat, map(gc.get_objects, (generation,)), (2,)))
