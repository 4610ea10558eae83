"""The objects of some classes among all that the garbage collector knows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, compress, repeat
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
    refers to it ("bad argument to internal function"). So one call in C asks for the list, reads it in two places side
    by side and lets go of it, without a collection: at its end both have asked ``lists`` for another one.
    """
    with no_collection():
        chosen = _derived(classes) if generation is None else _derived_in(classes, generation)
        lists = _twice(generation)
        objects = chain.from_iterable(chain(lists, ((None,),)))
        return list(compress(objects, map(chosen.__contains__, map(type, chain.from_iterable(lists)))))


def _derived(classes: frozenset[type]) -> set[type]:
    """Some classes, and all that derive from them."""
    known = set(classes)
    waiting: list[type] = list(classes)
    while waiting:
        derived: set[type] = set(type.__subclasses__(waiting.pop())) - known
        known |= derived
        waiting.extend(derived)
    return known


def _derived_in(classes: frozenset[type], generation: int) -> set[type]:
    """Those of them with instances in a generation: libraries have thousands, a young generation has few objects."""
    kinds = set(map(type, chain.from_iterable(map(gc.get_objects, (generation,)))))
    return {kind for kind in kinds if not classes.isdisjoint(kind.__mro__)}


def _twice(generation: int | None) -> Iterator[list[Any]]:
    """A list of all objects, asked for when it is first taken, two times."""
    return chain.from_iterable(map(repeat, map(gc.get_objects, (generation,)), (2,)))
